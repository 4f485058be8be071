//! The suite that every store has to pass: one test per behaviour, the same for all of them.
//!
//! A store joins with one line in its own test module:
//!
//! ```ignore
//! lock_store_conformance::conformance!(subject);                       // async fn subject() -> Subject
//! lock_store_conformance::conformance!(subject, start_paused = true);  // what tokio::test should be given
//! lock_store_conformance::conformance!(required: subject);             // without what a store may leave out
//! ```
//!
//! Every test gets a subject whose keys no other test uses, so tests run side by side on one
//! server.
//!
//! Tests let time pass by `rest`. On the memory store, whose tests run under paused time, it
//! returns at once; on a server it really waits. A test on a server may be paused at any point. So
//! a lease that has to last is `LONG`, and a `SHORT` one is only expected to be over after
//! `SHORT_IS_OVER`. The lives of waiters and intents, which a test can't choose, may end during a
//! pause: `undisturbed` runs such a test again.
#![forbid(unsafe_code)]

#[doc(hidden)]
pub mod acquire;
#[doc(hidden)]
pub mod downgrade;
#[doc(hidden)]
pub mod fair;
#[doc(hidden)]
pub mod fair_turns;
#[doc(hidden)]
pub mod intent;
#[doc(hidden)]
pub mod kinds;
#[doc(hidden)]
pub mod latch;
#[doc(hidden)]
pub mod read_write;
#[doc(hidden)]
pub mod release;
#[doc(hidden)]
pub mod renew;
#[doc(hidden)]
pub mod scan;
#[doc(hidden)]
pub mod semaphore;
#[doc(hidden)]
pub mod several;
mod stall;
#[doc(hidden)]
pub mod status;
mod suite;
#[doc(hidden)]
pub mod takeover;
#[doc(hidden)]
pub mod tokens;
#[doc(hidden)]
pub mod watch;
#[doc(hidden)]
pub mod withdraw;

use std::any::Any;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use lock_core::store::{
    AcquireRequest, Acquired, BoxFuture, Busy, Few, Granted, INTENT_LIFE, Item, Kind, LockStatus, LockStore,
    Notice, ReleaseRequest, Released, RenewItem, RenewRequest, Renewed, Rivals, StoreError, Watch, Withdrawn,
};
use lock_core::{FencingToken, LockKey, OwnerId, TokenRetention};
use stall::rest;
pub use stall::undisturbed;

/// Lease that does not end during a test.
const LONG: Duration = Duration::from_secs(60);
/// Lease that is meant to end.
const SHORT: Duration = Duration::from_millis(200);
/// Time after which a [`SHORT`] lease has ended.
const SHORT_IS_OVER: Duration = Duration::from_millis(300);
/// Maximum time that a test waits for something that has to happen.
const PATIENCE: Duration = Duration::from_secs(10);
/// Time that a test waits for something that must not happen.
const SILENCE: Duration = Duration::from_millis(150);

/// Executes a request on the first handle's store, but after its time limit.
pub type SendLate = Box<dyn Fn(Arc<AcquireRequest>) -> BoxFuture<Result<Acquired, StoreError>> + Send + Sync>;

/// A store under test: two handles on the same data, as two managers have them.
pub struct Subject {
    store: Arc<dyn LockStore>,
    other: Arc<dyn LockStore>,
    send_late: Option<SendLate>,
    skips: &'static [&'static str],
    skipped: bool,
    _keeps: Box<dyn Any + Send + Sync>,
}

impl fmt::Debug for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Subject").field("store", &self.store).finish_non_exhaustive()
    }
}

impl Subject {
    /// Creates a subject from two handles on one store.
    #[must_use]
    pub fn new(store: Arc<dyn LockStore>, other: Arc<dyn LockStore>) -> Self {
        Self { store, other, send_late: None, skips: &[], skipped: false, _keeps: Box::new(()) }
    }

    /// Sets how to send a request late. Without it, the tests of late requests pass without testing
    /// anything.
    #[must_use]
    pub fn late_through(mut self, send_late: SendLate) -> Self {
        self.send_late = Some(send_late);
        self
    }

    /// Skips tests of features that the store does not promise.
    #[must_use]
    pub fn skipping(mut self, tests: &'static [&'static str]) -> Self {
        self.skips = tests;
        self
    }

    /// Records which test the subject is for.
    #[doc(hidden)]
    #[must_use]
    pub fn in_test(mut self, name: &str) -> Self {
        self.skipped = self.skips.contains(&name);
        self
    }

    /// Keeps a value alive for as long as the test runs, for example a server.
    #[must_use]
    pub fn renewing(mut self, something: impl Any + Send + Sync) -> Self {
        self._keeps = Box::new(something);
        self
    }
}

fn key(name: &str) -> LockKey {
    LockKey::new(name).unwrap()
}

/// Makes an owner in the usual form: stores leave other texts alone.
fn owner(number: u32) -> OwnerId {
    OwnerId::new(format!("c0ffee00-0000-4000-8000-000000000000:{number}"))
}

fn item(name: &str, number: u32) -> Item {
    Item { key: key(name), kind: Kind::Mutex, owner: owner(number) }
}

fn items(names: &[&str], number: u32) -> Vec<Item> {
    names.iter().map(|name| item(name, number)).collect()
}

fn item_of(kind: Kind, name: &str, number: u32) -> Item {
    Item { kind, ..item(name, number) }
}

/// Makes a request for one key in this kind.
fn wish(kind: Kind, name: &str, number: u32) -> AcquireRequest {
    wish_of(vec![item_of(kind, name, number)])
}

fn wish_of(items: Vec<Item>) -> AcquireRequest {
    AcquireRequest::new(items, LONG, PATIENCE)
}

/// Makes such a request by a caller that waits.
fn waiting(kind: Kind, name: &str, number: u32) -> AcquireRequest {
    wish(kind, name, number).queued(LONG)
}

fn request(names: &[&str], number: u32) -> AcquireRequest {
    leased(names, number, LONG)
}

fn leased(names: &[&str], number: u32, lease: Duration) -> AcquireRequest {
    AcquireRequest::new(items(names, number), lease, PATIENCE)
}

async fn acquire(store: &Arc<dyn LockStore>, request: impl Into<Arc<AcquireRequest>>) -> Acquired {
    store.acquire(request.into()).await.unwrap()
}

async fn grant(store: &Arc<dyn LockStore>, request: impl Into<Arc<AcquireRequest>>) -> Granted {
    match acquire(store, request).await {
        Acquired::Granted(granted) => granted,
        Acquired::Busy(busy) => panic!("{busy:?}"),
    }
}

/// Reads when a busy key is free, which most stores know.
trait Left {
    fn left(&self) -> Duration;
}

impl Left for Busy {
    fn left(&self) -> Duration {
        self.remaining.unwrap()
    }
}

async fn busy(store: &Arc<dyn LockStore>, request: impl Into<Arc<AcquireRequest>>) -> Busy {
    match acquire(store, request).await {
        Acquired::Granted(granted) => panic!("{granted:?}"),
        Acquired::Busy(busy) => busy,
    }
}

fn giving_back(items: impl Into<Few<Item>>) -> ReleaseRequest {
    ReleaseRequest {
        items: items.into(),
        linger: Duration::ZERO,
        then: None,
        own_watch: None,
        timeout: PATIENCE,
    }
}

async fn release(store: &Arc<dyn LockStore>, request: ReleaseRequest) -> Released {
    store.release(Arc::new(request)).await.unwrap()
}

async fn renew(store: &Arc<dyn LockStore>, items: Vec<Item>, lease: Duration) -> Vec<Renewed> {
    let items = items.into_iter().map(|item| RenewItem::hold(item, lease)).collect();
    store.renew(Arc::new(RenewRequest { items, timeout: PATIENCE })).await.unwrap()
}

/// Sends a waiter's sign of life for this item, and returns the answer.
async fn keep_waiter(store: &Arc<dyn LockStore>, item: Item) -> Renewed {
    let items = vec![RenewItem::waiter(item, LONG)];
    store.renew(Arc::new(RenewRequest { items, timeout: PATIENCE })).await.unwrap()[0]
}

async fn downgrade(store: &Arc<dyn LockStore>, items: impl Into<Few<Item>>, lease: Duration) -> Vec<Renewed> {
    let items: Few<Item> = items.into();
    let items = items.into_iter().map(|item| RenewItem::hold(item, lease)).collect();
    store.downgrade(Arc::new(RenewRequest { items, timeout: PATIENCE })).await.unwrap()
}

/// Releases the holds of the request.
async fn give_back(store: &Arc<dyn LockStore>, request: &AcquireRequest) -> Released {
    release(store, giving_back(request.items.clone())).await
}

async fn withdraw(store: &Arc<dyn LockStore>, request: &Arc<AcquireRequest>) -> Withdrawn {
    store.withdraw(Arc::clone(request)).await.unwrap()
}

async fn status(store: &Arc<dyn LockStore>, name: &str) -> LockStatus {
    store.status(key(name)).await.unwrap()
}

async fn force_release(store: &Arc<dyn LockStore>, name: &str) -> bool {
    store.force_release(key(name)).await.unwrap()
}

async fn watch(store: &Arc<dyn LockStore>, names: &[&str]) -> Watch {
    let watch = store.watch(Arc::new(request(names, 99))).await.unwrap();
    assert!(watch.is_confirmed());
    watch
}

async fn watch_for(store: &Arc<dyn LockStore>, request: &Arc<AcquireRequest>) -> Watch {
    let watch = store.watch(Arc::clone(request)).await.unwrap();
    assert!(watch.is_confirmed());
    watch
}

/// Does what a waiter does: asks, listens, and asks again.
async fn wait_in_line(store: &Arc<dyn LockStore>, request: &Arc<AcquireRequest>) -> Watch {
    busy(store, Arc::clone(request)).await;
    let watch = watch_for(store, request).await;
    busy(store, Arc::clone(request)).await;
    watch
}

async fn assert_kind(store: &Arc<dyn LockStore>, name: &str, kind: Kind, holders: &[u32]) {
    let status = status(store, name).await;
    let mut found = status.holders.clone();
    found.sort_unstable();
    let holders: Vec<_> = holders.iter().map(|number| (owner(*number), 1)).collect();
    assert_eq!((status.kind, found), (Some(kind), holders), "{name}");
}

async fn assert_waiters(store: &Arc<dyn LockStore>, name: &str, waiters: u64) {
    assert_eq!(status(store, name).await.waiters, waiters, "waiters of {name}");
}

async fn assert_held_by(store: &Arc<dyn LockStore>, name: &str, number: u32) {
    assert_eq!(status(store, name).await.holders, [(owner(number), 1)], "holders of {name}");
}

async fn assert_free(store: &Arc<dyn LockStore>, name: &str) {
    let status = status(store, name).await;
    assert!(!status.is_locked() && status.remaining.is_none(), "{name}: {status:?}");
}

async fn remaining(store: &Arc<dyn LockStore>, name: &str) -> Duration {
    status(store, name).await.remaining.unwrap_or_default()
}

/// Checks the remaining lease, allowing for the time that a test may have been paused.
async fn assert_remaining(store: &Arc<dyn LockStore>, name: &str, expected: Duration) {
    let remaining = remaining(store, name).await;
    assert!(
        remaining <= expected && remaining + PATIENCE > expected,
        "{name}: {remaining:?} of {expected:?}"
    );
}

async fn assert_hears(watch: &mut Watch) {
    match tokio::time::timeout(PATIENCE, watch.notice()).await {
        Ok(notice) => assert_eq!(notice, Notice::Retry),
        Err(_) => panic!("nothing heard"),
    }
}

/// Checks that the watch hears of a grant to its request.
async fn assert_hears_grant(watch: &mut Watch) -> FencingToken {
    match tokio::time::timeout(PATIENCE, watch.notice()).await {
        Ok(Notice::Granted { token, .. }) => token,
        Ok(notice) => panic!("{notice:?}"),
        Err(_) => panic!("nothing heard"),
    }
}

/// Checks that the watch gets a notice, after which its request is granted.
async fn assert_gets_its_turn(store: &Arc<dyn LockStore>, watch: &mut Watch, request: &Arc<AcquireRequest>) {
    assert!(tokio::time::timeout(PATIENCE, watch.notice()).await.is_ok(), "nothing heard");
    grant(store, Arc::clone(request)).await;
}

async fn assert_hears_nothing(watch: &mut Watch) {
    rest(SILENCE).await;
    assert_eq!(watch.try_notice(), None);
}

/// Discards all notices so far.
async fn drain(watch: &mut Watch) {
    rest(SILENCE).await;
    while watch.try_notice().is_some() {}
}
