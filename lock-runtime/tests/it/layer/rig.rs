//! Shared parts of the scenes: a store that keeps a journal, requests, handlers, and bodies that
//! the test feeds.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::Bytes;
use http::{Method, Request, Response, Version};
use http_body::{Body, Frame};
use http_body_util::Full;
use lock_core::store::{
    AcquireRequest, Acquired, BoxFuture, Forward, LockStore, ReleaseRequest, Released, StoreError,
    StoreErrorKind,
};
use lock_runtime::layer::{BoxError, PartKey, path_segment};
use lock_runtime::testing::{leftovers, manager_on, memory_store};
use lock_runtime::{FencingToken, HeldLock, LockManager, LockManagerBuilder};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep};
use tower::{Service, ServiceExt};

pub(crate) const MS: Duration = Duration::from_millis(1);
pub(crate) const SECOND: Duration = Duration::from_secs(1);

pub(crate) type Sent = Request<Full<Bytes>>;

/// An entry of the journal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    Granted {
        key: String,
        owner: String,
    },
    /// `held` says whether it was held until then.
    Released {
        key: String,
        owner: String,
        held: bool,
    },
    Note(&'static str),
}

/// A memory store that records its grants and releases, and can be down or slow.
#[derive(Debug)]
pub(crate) struct Journal {
    inner: Arc<dyn LockStore>,
    events: Arc<Mutex<Vec<Event>>>,
    down: Mutex<Option<StoreErrorKind>>,
    /// Delay of a release.
    slow_release: Mutex<Duration>,
    /// Delay of the answer to an acquire.
    slow_answer: Mutex<Duration>,
}

impl Journal {
    pub(crate) fn note(&self, what: &'static str) {
        self.events.lock().unwrap().push(Event::Note(what));
    }

    pub(crate) fn events(&self) -> Vec<Event> {
        self.events.lock().unwrap().clone()
    }

    /// From now on, every acquire fails with this kind of error.
    pub(crate) fn fail(&self, kind: StoreErrorKind) {
        *self.down.lock().unwrap() = Some(kind);
    }

    pub(crate) fn recover(&self) {
        *self.down.lock().unwrap() = None;
    }

    pub(crate) fn release_takes(&self, time: Duration) {
        *self.slow_release.lock().unwrap() = time;
    }

    pub(crate) fn answer_takes(&self, time: Duration) {
        *self.slow_answer.lock().unwrap() = time;
    }
}

fn grant(events: &Mutex<Vec<Event>>, request: &AcquireRequest) {
    let granted = request
        .items
        .iter()
        .map(|item| Event::Granted { key: item.key.as_str().to_owned(), owner: format!("{:?}", item.owner) });
    events.lock().unwrap().extend(granted);
}

impl Forward for Journal {
    fn inner(&self) -> &dyn LockStore {
        &*self.inner
    }

    fn acquire(&self, request: Arc<AcquireRequest>) -> BoxFuture<Result<Acquired, StoreError>> {
        if let Some(kind) = *self.down.lock().unwrap() {
            let error = StoreError::new(kind, "redis at secret-host.internal:6379 said NO");
            return Box::pin(async move { Err(error) });
        }
        let (events, delay) = (Arc::clone(&self.events), *self.slow_answer.lock().unwrap());
        let answer = self.inner.acquire(Arc::clone(&request));
        Box::pin(async move {
            let acquired = answer.await?;
            if let Acquired::Granted(_) = acquired {
                grant(&events, &request);
            }
            if !delay.is_zero() {
                sleep(delay).await;
            }
            Ok(acquired)
        })
    }

    fn release(&self, request: Arc<ReleaseRequest>) -> BoxFuture<Result<Released, StoreError>> {
        let (events, delay) = (Arc::clone(&self.events), *self.slow_release.lock().unwrap());
        let answer = self.inner.release(Arc::clone(&request));
        Box::pin(async move {
            if !delay.is_zero() {
                sleep(delay).await;
            }
            let released = answer.await?;
            let all = request.items.iter().zip(&released.held).map(|(item, &held)| Event::Released {
                key: item.key.as_str().to_owned(),
                owner: format!("{:?}", item.owner),
                held,
            });
            events.lock().unwrap().extend(all);
            if let (Some(then), Some(_)) = (&request.then, &released.then) {
                grant(&events, &then.request);
            }
            Ok(released)
        })
    }
}

/// A manager and its store.
#[derive(Clone, Debug)]
pub(crate) struct Scene {
    pub(crate) locks: LockManager,
    pub(crate) store: Arc<Journal>,
}

impl Scene {
    pub(crate) fn new() -> Self {
        Self::with(LockManager::builder())
    }

    pub(crate) fn with(settings: LockManagerBuilder) -> Self {
        let store = Arc::new(Journal {
            inner: memory_store(),
            events: Arc::default(),
            down: Mutex::default(),
            slow_release: Mutex::default(),
            slow_answer: Mutex::default(),
        });
        Self { locks: manager_on(settings, Arc::clone(&store) as Arc<dyn LockStore>), store }
    }

    /// Returns a manager of another process at the same store.
    pub(crate) fn rival(&self) -> LockManager {
        manager_on(LockManager::builder(), Arc::clone(&self.store) as Arc<dyn LockStore>)
    }

    pub(crate) async fn is_locked(&self, key: &str) -> bool {
        self.locks.status(key).await.unwrap().is_locked()
    }

    /// Waits until `condition` holds, for at most three minutes of the paused clock.
    pub(crate) async fn until(&self, what: &str, condition: impl Fn() -> bool) {
        let started = Instant::now();
        while !condition() {
            assert!(started.elapsed() < 180 * SECOND, "in vain: {what}; {:?}", self.store.events());
            sleep(MS).await;
        }
    }

    pub(crate) async fn noted(&self, what: &'static str) {
        self.until(what, || self.store.events().contains(&Event::Note(what))).await;
    }

    /// Asserts that nothing is held, wanted or under way, and that every grant was freed exactly
    /// once. The next grant of a key gets a larger token than `last`.
    pub(crate) async fn is_settled(&self, last: Option<(&str, FencingToken)>) {
        self.is_settled_but(0, last).await;
    }

    /// Like [`is_settled`](Self::is_settled), for a scene in which this many grants were taken away
    /// at the store.
    pub(crate) async fn is_settled_but(&self, taken: usize, last: Option<(&str, FencingToken)>) {
        self.until("all is given back", || {
            let left = leftovers(&self.locks);
            (left.keys, left.timers, left.tasks, left.waiters) == (0, 0, 0, 0)
        })
        .await;
        let (mut grants, mut missing) = (BTreeMap::new(), 0);
        for event in self.store.events() {
            match event {
                Event::Granted { key, owner } => _ = grants.insert((key, owner), (0, 0)),
                Event::Released { key, owner, held } => {
                    // The grant of a fair queue may be a notice, which the journal does not
                    // contain.
                    let (calls, freed) = grants.entry((key, owner)).or_insert((0, 0));
                    *calls += 1;
                    *freed += usize::from(held);
                }
                Event::Note(_) => {}
            }
        }
        for (what, (calls, freed)) in &grants {
            assert!(
                *calls <= 1 && *freed <= 1,
                "{what:?} was freed more than once: {:?}",
                self.store.events()
            );
            missing += 1 - freed;
            assert!(!self.is_locked(&what.0).await, "{what:?} is still locked");
        }
        assert_eq!(missing, taken, "{:?}", self.store.events());
        if let Some((key, token)) = last {
            let next = self.locks.mutex(key).no_wait().acquire().await.unwrap();
            assert!(next.fencing_token() > token, "{next:?}");
            next.release().await.unwrap();
        }
    }

    /// Whether `note` comes before the first release in the journal.
    pub(crate) fn came_before_the_release(&self, note: &'static str) -> bool {
        let events = self.store.events();
        let noted = events.iter().position(|event| *event == Event::Note(note));
        let released = events.iter().position(|event| matches!(event, Event::Released { .. }));
        matches!((noted, released), (Some(noted), Some(released)) if noted < released)
    }

    pub(crate) fn probe(&self, held: &HeldLock) -> Probe {
        Probe { scene: self.clone(), held: held.clone() }
    }
}

/// Belongs to a handler or a body, and records where it was dropped: [`INSIDE`] its lock, or after
/// the loss.
#[derive(Debug)]
pub(crate) struct Probe {
    scene: Scene,
    held: HeldLock,
}

impl Probe {
    pub(crate) fn scene(&self) -> &Scene {
        &self.scene
    }
}

/// Recorded if it was dropped in the scope of its lock, which was still held.
pub(crate) const INSIDE: &str = "dropped inside its lock";
pub(crate) const OUTSIDE: &str = "dropped outside its lock";
pub(crate) const LOST: &str = "dropped after its lock was lost";
/// Recorded before [`LOST`] if the release is already under way.
pub(crate) const LATE: &str = "dropped after the release";

impl Drop for Probe {
    fn drop(&mut self) {
        if self.held.is_lost() {
            if leftovers(&self.scene.locks).tasks > 0 {
                self.scene.store.note(LATE);
            }
            return self.scene.store.note(LOST);
        }
        let again = self.scene.locks.mutex(self.held.key()).no_wait().acquire();
        let entered = match poll_once(again) {
            Poll::Ready(Ok(guard)) => guard.fencing_token() == self.held.fencing_token(),
            _ => false,
        };
        self.scene.store.note(if entered { INSIDE } else { OUTSIDE });
    }
}

pub(crate) fn poll_once<F: Future>(future: F) -> Poll<F::Output> {
    std::pin::pin!(future).poll(&mut Context::from_waker(Waker::noop()))
}

/// Returns an extractor of the first segment of the path.
pub(crate) fn by_path() -> PartKey {
    path_segment(0)
}

pub(crate) fn request(method: Method, path: &str) -> Sent {
    Request::builder().method(method).uri(path).body(Full::default()).unwrap()
}

pub(crate) fn post(path: &str) -> Sent {
    request(Method::POST, path)
}

pub(crate) fn grpc(path: &str) -> Sent {
    let mut request = post(path);
    *request.version_mut() = Version::HTTP_2;
    request.headers_mut().insert("content-type", "application/grpc".parse().unwrap());
    request
}

/// Sends a request to a clone of the service.
pub(crate) fn send<S, B>(service: &S, request: Sent) -> impl Future<Output = Response<B>> + use<S, B>
where
    S: Service<Sent, Response = Response<B>, Error: std::fmt::Debug> + Clone,
{
    let sent = service.clone().oneshot(request);
    async move { sent.await.unwrap() }
}

/// Returns the lock in the extensions of a request or response.
pub(crate) fn held_in(extensions: &http::Extensions) -> HeldLock {
    extensions.get::<HeldLock>().expect("it is locked").clone()
}

pub(crate) fn ok() -> Response<Full<Bytes>> {
    Response::new(Full::from("done"))
}

/// A handler that does nothing.
pub(crate) fn done(_: Sent) -> std::future::Ready<Result<Response<Full<Bytes>>, Infallible>> {
    std::future::ready(Ok(ok()))
}

/// A body whose frames the test sends, with a value that is dropped with it.
#[derive(Debug)]
pub(crate) struct FedBody<P = ()> {
    frames: mpsc::UnboundedReceiver<Result<Frame<Bytes>, BoxError>>,
    _with: P,
}

pub(crate) type Feed = mpsc::UnboundedSender<Result<Frame<Bytes>, BoxError>>;

pub(crate) fn fed<P>(with: P) -> (Feed, FedBody<P>) {
    let (feed, frames) = mpsc::unbounded_channel();
    (feed, FedBody { frames, _with: with })
}

impl<P: Unpin> Body for FedBody<P> {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        self.frames.poll_recv(cx)
    }
}
