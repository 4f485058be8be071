//! [`Recorded`]: handlers that record when they were inside, for the checker of
//! [overlaps](lock_tests::overlap).

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::Path;
use axum::routing::post;
use lock_runtime::HeldLock;
use lock_tests::overlap::{Recorder, Report, Section};
use tempfile::TempDir;

/// A log of the handlers on all servers of a test.
pub(crate) struct Recorded {
    _folder: TempDir,
    path: PathBuf,
    recorder: Arc<Recorder>,
    work: Duration,
}

impl Recorded {
    pub(crate) fn new() -> Self {
        Self::slow(Duration::from_millis(1))
    }

    /// Makes handlers that take this long.
    pub(crate) fn slow(work: Duration) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log");
        let recorder = Arc::new(Recorder::open(&path).unwrap());
        Self { _folder: folder, path, recorder, work }
    }

    /// Returns one route, `/orders/{id}`, whose handler records itself.
    pub(crate) fn routes(&self) -> Router {
        let (recorder, work) = (Arc::clone(&self.recorder), self.work);
        let handler = async move |Path(id): Path<String>, held: Option<HeldLock>| {
            let _inside = Inside::enter(recorder, &id, held);
            tokio::time::sleep(work).await;
        };
        Router::new().route("/orders/{id}", post(handler))
    }

    pub(crate) fn report(&self) -> Report {
        Report::read(&self.path).unwrap()
    }
}

/// A handler that is inside until it returns or is dropped.
struct Inside {
    recorder: Arc<Recorder>,
    section: Option<Section>,
    held: Option<HeldLock>,
}

impl Inside {
    fn enter(recorder: Arc<Recorder>, key: &str, held: Option<HeldLock>) -> Self {
        let token = held.as_ref().map_or(0, |held| held.fencing_token().get());
        let section = Some(recorder.enter(key, token, || remaining(held.as_ref())));
        Self { recorder, section, held }
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        if let Some(section) = self.section.take() {
            self.recorder.leave(section, || remaining(self.held.as_ref()));
        }
    }
}

/// Returns the remaining validity, or a practically endless one without a lock.
fn remaining(held: Option<&HeldLock>) -> Duration {
    held.map_or(Duration::from_secs(3600), HeldLock::remaining)
}
