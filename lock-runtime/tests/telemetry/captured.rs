//! The text that a user reads in the traces of a run.

use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tracing_subscriber::filter::LevelFilter;

#[derive(Clone, Default)]
struct Buffer(Arc<Mutex<Vec<u8>>>);

impl io::Write for Buffer {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Keeps the other tests of this program waiting. A thread without a subscriber that reaches a call
/// site first would turn it off for all threads.
pub(crate) fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns everything that `run` traces on this thread, down to `level`, one line for each event.
pub(crate) fn captured(level: LevelFilter, run: impl FnOnce()) -> String {
    let _alone = alone();
    let buffer = Buffer::default();
    let writer = buffer.clone();
    let subscriber = tracing_subscriber::fmt()
        .with_max_level(level)
        .with_ansi(false)
        .with_writer(move || writer.clone())
        .finish();
    tracing::subscriber::with_default(subscriber, run);
    let text = buffer.0.lock().unwrap().clone();
    String::from_utf8(text).unwrap()
}
