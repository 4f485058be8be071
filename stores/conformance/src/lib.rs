//! Tests of the contract of a store. They are the same for every store.
//!
//! The contract is the documentation of [`lock_core::store`]. This crate runs on any [`LockStore`],
//! in a crate of yours, too. It reads the store's [`Abilities`], tests what they claim, and checks
//! that the store refuses the rest.
//!
//! # Use
//!
//! In the `Cargo.toml` of the store:
//!
//! ```toml
//! [dev-dependencies]
//! lock-store-conformance = "0.1"
//! tokio = { version = "1", features = ["macros", "rt"] }
//! ```
//!
//! A file in `tests/`, complete. This store only forwards to the one in memory, and is polled:
//!
//! ```
//! use std::sync::Arc;
//!
//! use lock_core::store::{
//!     Abilities, AcquireRequest, BoxFuture, Forward, LockStore, Notices, StoreError, Watch,
//! };
//! use lock_store_conformance::{Subject, conformance};
//! use lock_store_memory::MemoryStore;
//!
//! #[derive(Debug)]
//! struct MyStore {
//!     server: Arc<MemoryStore>,
//!     abilities: Abilities,
//! }
//!
//! impl MyStore {
//!     fn new(server: &Arc<MemoryStore>) -> Arc<Self> {
//!         let all = server.abilities().clone();
//!         let abilities = Abilities {
//!             name: "my store",
//!             notices: Notices::Polled,
//!             counts_listeners: false,
//!             direct_grants: false,
//!             ..all
//!         };
//!         Arc::new(Self { server: Arc::clone(server), abilities })
//!     }
//! }
//!
//! impl Forward for MyStore {
//!     fn inner(&self) -> &dyn LockStore {
//!         &*self.server
//!     }
//!
//!     fn abilities(&self) -> &Abilities {
//!         &self.abilities
//!     }
//!
//!     fn watch(&self, _: Arc<AcquireRequest>) -> BoxFuture<Result<Watch, StoreError>> {
//!         Box::pin(async { Ok(Watch::polled()) })
//!     }
//! }
//!
//! /// Makes two handles, as two processes have them, on a server of their own.
//! async fn my_store() -> Subject {
//!     let server = MemoryStore::new("");
//!     Subject::new(MyStore::new(&server), MyStore::new(&server))
//! }
//!
//! conformance!(my_store);
//! # fn main() {}
//! ```
//!
//! The function is called for each test, and tests run side by side: give each call its own server,
//! database or prefix. [`Subject::keeping`] keeps a server alive until the test has ended. If one
//! handle is enough, the function may return `Arc<MyStore>`. Two handles find more: a store that
//! keeps a part of its data in the process passes with one.
//!
//! [`conformance!`](crate::conformance!) makes a module of each group: `cargo test fair::` runs the
//! group `fair`. `cargo test -- --show-output` shows what was left out.
//!
//! # Groups
//!
//! | group | needs | what it checks |
//! |---|---|---|
//! | `claims` | | the abilities agree with each other; what they do not claim is refused |
//! | `acquire` | | grants, busy keys, leases, re-sent and late requests, rivals |
//! | `tokens` | | fencing tokens grow, whatever happens between two grants |
//! | `release` | | only the owner's hold is released; lingering releases |
//! | `renew` | | renewals lengthen only, revive nothing, and answer for each item |
//! | `withdraw` | | an acquire is undone, and stays so |
//! | `status` | | what operators see, and forced releases |
//! | `kinds` | | kinds exclude each other on one key; only mutexes: the same for them |
//! | `watch` | `Pushed` | who hears of which release |
//! | `takeover` | `Takeovers` | a release that acquires the key for the next owner |
//! | `fair` | `Fair` | the queue: who is in it, and for how long |
//! | `fair_turns` | `Fair` | how the key passes to the first of the queue |
//! | `mutex_queue`, `mutex_turns` | `Queues` | the same for mutexes |
//! | `read_write` | `ReadWrite` | many readers or one writer |
//! | `intent` | `ReadWrite`, `Intents` | a waiting writer keeps new readers out |
//! | `downgrade` | `Downgrade` | a writer becomes a reader |
//! | `several` | `Several` | requests for several keys: all or nothing, in every queue |
//! | `scan` | `Scan` | every lock that stays is listed |
//! | `semaphore` | `Semaphores` | permits |
//! | `latch` | `Latches` | count-down latches; a key with a hash tag is refused, as Redis has to |
//!
//! # Needs
//!
//! A group, and a single test in it, may need more than mutexes. The list is `src/suite.rs`.
//!
//! | need | claimed by | without it, the test checks instead |
//! |---|---|---|
//! | `Several` | [`several`](Abilities::several) | two keys in one request are refused |
//! | `Fair` | [`fair`](Abilities::fair) | [`Kind::Fair`] is refused |
//! | `ReadWrite` | [`read_write`](Abilities::read_write) | [`Kind::Read`] and [`Kind::Write`] are refused |
//! | `Downgrade` | [`downgrade`](Abilities::downgrade) | a downgrade is refused |
//! | `Shortens` | [`shortens`](Abilities::shortens) | a lingering release is refused |
//! | `Takeovers` | [`takeovers`](Abilities::takeovers) | a takeover is declined |
//! | `Direct` | [`direct_grants`](Abilities::direct_grants) | a release leaves the key free |
//! | `Pushed` | [`notices`](Abilities::notices) | a watch fails or is unconfirmed |
//! | `Ranges` | [`most_tokens`](Abilities::most_tokens) above 1 | a grant has one token |
//! | `Scan` | [`scan`](Abilities::scan) | a scan is refused |
//! | `Semaphores` | [`semaphores`](LockStore::semaphores) | |
//! | `Latches` | [`latches`](LockStore::latches) | |
//! | `Listeners` | [`counts_listeners`](Abilities::counts_listeners) | |
//! | `ClockTokens` | [`tokens`](Abilities::tokens) | |
//! | `OwnTokens` | [`own_tokens`](Abilities::own_tokens) | the last token of a key is not known |
//! | `ByClock` | [`late_requests`](Abilities::late_requests) | |
//! | `Floors` | [`member`](LockStore::member) | |
//! | `Queues` | [`queues_mutexes`](Abilities::queues_mutexes) | |
//! | `Races` | no [`queues_mutexes`](Abilities::queues_mutexes) | |
//! | `Intents` | no [`queues_read_write`](Abilities::queues_read_write) | |
//! | `FreeQueues` | [`late_requests`](Abilities::late_requests) by another rule than the session's | |
//!
//! Refused means [`Unsupported`][unsupported], and that nothing is taken or changed. Each test that
//! is left out prints a line, such as `left out: my store has no fair locks`.
//!
//! [unsupported]: lock_core::store::StoreErrorKind::Unsupported
//!
//! A test that does not suit a store for another reason is named with
//! [`skipping`](Subject::skipping).
//!
//! # Time
//!
//! Leases and lives come from the abilities. A lease that has to end is the shortest one, or
//! 200 ms. One that has to last is 60 s, or a third of the longest. The queue's tests outlast
//! [`waiter_life`](Abilities::waiter_life) a few times. The remaining lease may be too short by
//! the time since the test began and one second.
//!
//! With the usual times, no test takes much longer than five seconds. On a server nearby, all of
//! them take about six seconds for a store of mutexes, and 25 for one that claims everything. A
//! store whose clock is tokio's takes no time with `conformance!(my_store, start_paused = true)`,
//! which needs tokio's feature `test-util`.
//!
//! The machine may pause a test for longer than a waiter lives, or than a lease that has to end. A
//! test that fails after such a pause is run again on a fresh subject, three times at most. Leases
//! that have to end are each time three times as long, if the store allows it.
#![forbid(unsafe_code)]

#[doc(hidden)]
pub mod acquire;
#[doc(hidden)]
pub mod claims;
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
mod needs;
/// The tests of the queue with mutexes in it.
#[doc(hidden)]
pub mod mutex_queue {
    pub use super::fair::*;
}
#[doc(hidden)]
pub mod mutex_turns {
    pub use super::fair_turns::*;
}
#[doc(hidden)]
pub mod read_write;
mod refusals;
#[doc(hidden)]
pub mod release;
#[doc(hidden)]
pub mod renew;
mod routed;
mod run;
#[doc(hidden)]
pub mod scan;
#[doc(hidden)]
pub mod semaphore;
#[doc(hidden)]
pub mod several;
#[doc(hidden)]
pub mod status;
mod suite;
#[doc(hidden)]
pub mod takeover;
mod times;
#[doc(hidden)]
pub mod tokens;
#[doc(hidden)]
pub mod watch;
#[doc(hidden)]
pub mod withdraw;

use std::any::Any;
use std::fmt;
use std::panic::Location;
use std::sync::Arc;
use std::time::Duration;

use lock_core::store::{
    Abilities, AcquireRequest, Acquired, BoxFuture, Busy, Few, Granted, Item, Kind, LateRequests, LockStatus,
    LockStore, Moment, Notice, Notices, ReleaseRequest, Released, RenewItem, RenewRequest, Renewed, Rivals,
    ServerTime, StoreError, StoreErrorKind, Tokens, Watch, Withdrawn,
};
use lock_core::{FencingToken, LockKey, OwnerId, TokenRetention};
#[doc(hidden)]
pub use needs::Need;
#[doc(hidden)]
pub use run::run;
use run::{abilities, queued, rest};
use times::*;
use tokio::time::Instant;

/// Executes a request on the store of the first handle, but after its time limit.
pub type SendLate = Box<dyn Fn(Arc<AcquireRequest>) -> BoxFuture<Result<Acquired, StoreError>> + Send + Sync>;

/// A store under test: two handles on the same data, as two processes have them.
pub struct Subject {
    store: Arc<dyn LockStore>,
    other: Arc<dyn LockStore>,
    send_late: SendLate,
    skips: &'static [(&'static str, &'static str)],
    _keeps: Box<dyn Any + Send + Sync>,
}

impl fmt::Debug for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Subject").field("store", &self.store).finish_non_exhaustive()
    }
}

impl<S: LockStore> From<Arc<S>> for Subject {
    fn from(store: Arc<S>) -> Self {
        Self::of(store)
    }
}

impl Subject {
    /// Creates a subject from one handle, which also stands for the second process.
    #[must_use]
    pub fn of(store: Arc<dyn LockStore>) -> Self {
        Self::new(Arc::clone(&store), store)
    }

    /// Creates a subject from two handles on the same data.
    #[must_use]
    pub fn new(store: Arc<dyn LockStore>, other: Arc<dyn LockStore>) -> Self {
        let sealed = Arc::clone(&store);
        let send_late: SendLate = Box::new(move |request| {
            // The stamp of a sealed request is in the past.
            request.seal();
            sealed.acquire(request)
        });
        Self { store, other, send_late, skips: &[], _keeps: Box::new(()) }
    }

    /// Creates a subject from two handles whose holds belong to their
    /// [sessions](LateRequests::BySession). The calls of an owner go to the handle that it was
    /// first seen on, as they do in reality.
    #[must_use]
    pub fn of_sessions(store: Arc<dyn LockStore>, other: Arc<dyn LockStore>) -> Self {
        let [store, other] = routed::pair(store, other);
        Self::new(store, other)
    }

    /// Sets how to send a request late. Without it, tests [seal](AcquireRequest::seal) the request
    /// before they send it, so that its time limit is in the past.
    #[must_use]
    pub fn late_through(mut self, send_late: SendLate) -> Self {
        self.send_late = send_late;
        self
    }

    /// Skips tests that do not suit the store, each with the reason: `test` or `group::test`.
    ///
    /// # Panics
    ///
    /// If the suite has no such test.
    #[must_use]
    pub fn skipping(mut self, tests: &'static [(&'static str, &'static str)]) -> Self {
        for (name, _) in tests {
            assert!(suite::TESTS.iter().any(|test| is_named(test, name)), "the suite has no test {name:?}");
        }
        self.skips = tests;
        self
    }

    /// Keeps a value alive for as long as the test runs, for example a server.
    #[must_use]
    pub fn keeping(mut self, something: impl Any + Send + Sync) -> Self {
        self._keeps = Box::new(something);
        self
    }

    /// Sends the request late, and returns its refusal.
    async fn refused_late(&self, request: AcquireRequest) -> StoreError {
        let request = Arc::new(request);
        let error = match run::resting((self.send_late)(Arc::clone(&request))).await {
            Ok(Acquired::Granted(_)) => panic!("a late request was granted: {}", named(&request.items)),
            Ok(Acquired::Busy(_)) => {
                panic!("a late request was busy, and not refused as `TooLate`: {}", named(&request.items))
            }
            Err(error) => error,
        };
        assert_eq!(error.kind(), StoreErrorKind::TooLate, "a late request: {error}");
        error
    }

    /// Returns why the test is skipped, if it is.
    fn reason_to_skip(&self, test: &str) -> Option<&'static str> {
        self.skips.iter().find(|(name, _)| is_named(test, name)).map(|(_, reason)| *reason)
    }
}

/// Whether `name` is that of the test `group::test`, with or without the group.
fn is_named(test: &str, name: &str) -> bool {
    test == name || test.rsplit_once("::").is_some_and(|(_, test)| test == name)
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
    AcquireRequest::new(items, long(), PATIENCE)
}

/// Makes such a request by a caller that waits.
fn waiting(kind: Kind, name: &str, number: u32) -> AcquireRequest {
    wish(kind, name, number).queued(long())
}

fn request(names: &[&str], number: u32) -> AcquireRequest {
    leased(names, number, long())
}

fn leased(names: &[&str], number: u32, lease: Duration) -> AcquireRequest {
    AcquireRequest::new(items(names, number), lease, PATIENCE)
}

/// Returns the keys and owners of a request, for the text of a failure.
fn named<'a>(items: impl IntoIterator<Item = &'a Item>) -> String {
    let all: Vec<_> = items.into_iter().map(|item| format!("{:?} for {:?}", item.key, item.owner)).collect();
    all.join(", ")
}

/// Returns the answer of a call, or fails with what was called.
fn answer<T>(answer: Result<T, StoreError>, what: &str, on: &str) -> T {
    answer.unwrap_or_else(|error| panic!("{what} of {on}: {error}"))
}

async fn acquire(store: &Arc<dyn LockStore>, request: impl Into<Arc<AcquireRequest>>) -> Acquired {
    let request = request.into();
    answer(store.acquire(Arc::clone(&request)).await, "acquire", &named(&request.items))
}

#[track_caller]
fn grant(
    store: &Arc<dyn LockStore>,
    request: impl Into<Arc<AcquireRequest>>,
) -> impl Future<Output = Granted> + Send {
    let (request, at) = (request.into(), Location::caller());
    async move {
        match acquire(store, Arc::clone(&request)).await {
            Acquired::Granted(granted) => granted,
            Acquired::Busy(busy) => panic!("not granted: {} ({at}): {busy:?}", named(&request.items)),
        }
    }
}

#[track_caller]
fn busy(
    store: &Arc<dyn LockStore>,
    request: impl Into<Arc<AcquireRequest>>,
) -> impl Future<Output = Busy> + Send {
    let (request, at) = (request.into(), Location::caller());
    async move {
        match acquire(store, Arc::clone(&request)).await {
            Acquired::Granted(granted) => {
                panic!("granted, and not busy: {} ({at}): {granted:?}", named(&request.items))
            }
            Acquired::Busy(busy) => busy,
        }
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
    let request = Arc::new(request);
    answer(store.release(Arc::clone(&request)).await, "release", &named(&request.items))
}

async fn renew(store: &Arc<dyn LockStore>, items: Vec<Item>, lease: Duration) -> Vec<Renewed> {
    let on = named(&items);
    let items = items.into_iter().map(|item| RenewItem::hold(item, lease)).collect();
    answer(store.renew(Arc::new(RenewRequest { items, timeout: PATIENCE })).await, "renew", &on)
}

/// Sends a waiter's sign of life for this item, and returns the answer.
async fn keep_waiter(store: &Arc<dyn LockStore>, item: Item) -> Renewed {
    let on = named([&item]);
    let items = vec![RenewItem::waiter(item, long())];
    answer(store.renew(Arc::new(RenewRequest { items, timeout: PATIENCE })).await, "sign of life", &on)[0]
}

async fn downgrade(store: &Arc<dyn LockStore>, items: impl Into<Few<Item>>, lease: Duration) -> Vec<Renewed> {
    let items: Few<Item> = items.into();
    let on = named(&items);
    let items = items.into_iter().map(|item| RenewItem::hold(item, lease)).collect();
    answer(store.downgrade(Arc::new(RenewRequest { items, timeout: PATIENCE })).await, "downgrade", &on)
}

/// Releases the holds of the request.
async fn give_back(store: &Arc<dyn LockStore>, request: &AcquireRequest) -> Released {
    release(store, giving_back(request.items.clone())).await
}

async fn withdraw(store: &Arc<dyn LockStore>, request: &Arc<AcquireRequest>) -> Withdrawn {
    answer(store.withdraw(Arc::clone(request)).await, "withdrawal", &named(&request.items))
}

async fn status(store: &Arc<dyn LockStore>, name: &str) -> LockStatus {
    answer(store.status(key(name)).await, "status", name)
}

async fn force_release(store: &Arc<dyn LockStore>, name: &str) -> bool {
    answer(store.force_release(key(name)).await, "forced release", name)
}

async fn watch(store: &Arc<dyn LockStore>, names: &[&str]) -> Watch {
    watch_for(store, &Arc::new(request(names, 99))).await
}

/// Listens for releases; on a store that pushes no notices, the watch is unconfirmed and nothing
/// has to be heard.
async fn watch_for(store: &Arc<dyn LockStore>, request: &Arc<AcquireRequest>) -> Watch {
    let watch = store.watch(Arc::clone(request)).await;
    if has_notices() {
        let watch = watch.unwrap();
        assert!(watch.is_confirmed(), "notices are pushed, and the watch is not confirmed");
        return watch;
    }
    let watch = watch.unwrap_or_else(|_| Watch::polled());
    assert!(!watch.is_confirmed(), "notices are not pushed, and the watch is confirmed");
    watch
}

fn has_notices() -> bool {
    abilities(|store| store.notices == Notices::Pushed)
}

/// Returns the kinds of locks that the store has.
fn kinds_of_locks() -> Vec<Kind> {
    let all = [Kind::Mutex, Kind::Fair, Kind::Read, Kind::Write];
    all.into_iter().filter(|kind| abilities(|store| store.has(*kind))).collect()
}

/// Returns those of these names that one request may have: all, or only the first.
fn together<'a>(names: &'a [&'a str]) -> &'a [&'a str] {
    if abilities(|store| store.several) { names } else { &names[..1] }
}

/// Takes each key with this lease, in one request if the store can.
async fn grant_each(store: &Arc<dyn LockStore>, names: &[&str], number: u32, lease: Duration) {
    for names in names.chunks(if abilities(|store| store.several) { names.len() } else { 1 }) {
        grant(store, leased(names, number, lease)).await;
    }
}

/// Releases each key, in one request if the store can.
async fn release_each(store: &Arc<dyn LockStore>, names: &[&str], number: u32) {
    for names in names.chunks(if abilities(|store| store.several) { names.len() } else { 1 }) {
        release(store, giving_back(items(names, number))).await;
    }
}

/// Takes and releases 20 other keys: a store may delete old data meanwhile.
async fn use_other_keys(store: &Arc<dyn LockStore>) {
    for number in 0..20 {
        let other = Arc::new(request(&[&format!("other{number}")], 99));
        grant(store, Arc::clone(&other)).await;
        give_back(store, &other).await;
    }
}

/// Checks that owner 1 holds `name` when 60 % of its lease have passed since `sent`, and frees it.
/// Returns `false` if the machine was paused for so long that the lease may be over.
async fn assert_lasts(subject: &Subject, name: &str, sent: Instant, lease: Duration) -> bool {
    rest((lease * 3 / 5).saturating_sub(sent.elapsed())).await;
    let holders = status(&subject.store, name).await.holders;
    let answer = acquire(&subject.other, request(&[name], 2)).await;
    let passed = sent.elapsed();
    force_release(&subject.store, name).await;
    if passed > lease * 17 / 20 {
        return false;
    }
    let holds = holders == [(owner(1), 1)] && matches!(answer, Acquired::Busy(_));
    assert!(holds, "a lease of {lease:?} has ended within {passed:?}: holders {holders:?}, {answer:?}");
    true
}

/// Returns how many tokens a grant has if this many are asked for.
fn tokens_of(asked: u32) -> u64 {
    abilities(|store| asked.min(store.most_tokens)).into()
}

/// Whether the counters of tokens outlive the holds, and each key has its own.
fn has_counters() -> bool {
    abilities(|store| store.tokens == Tokens::Clock && store.own_tokens)
}

/// Checks the token that a status of a held key shows, or that it shows none if the store has no
/// counter for each key.
fn assert_last_token(status: &LockStatus, last: u64) {
    let last = Some(last).filter(|_| abilities(|store| store.own_tokens));
    assert_eq!(status.last_token.map(u64::from), last, "{status:?}");
}

/// Checks what a release says of those who wait, if the store counts them.
fn assert_rivals(released: &Released, rivals: Rivals) {
    if abilities(|store| store.counts_listeners) {
        assert_eq!(released.rivals, rivals);
    }
}

/// Checks that `moment` is later than any at which a copy of the request could still be executed,
/// if the store refuses late requests by its clock.
fn assert_past(moment: Moment, latest: Option<ServerTime>) {
    if abilities(|store| store.late_requests == LateRequests::ByClock && store.tokens == Tokens::Clock) {
        let latest = latest.expect("the request was stamped");
        assert!(
            moment > latest.into(),
            "the withdrawal was settled too early: at {moment:?}, and copies are executed until {latest:?}"
        );
    }
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

/// Checks the remaining lease, allowing for the time that has passed.
async fn assert_remaining(store: &Arc<dyn LockStore>, name: &str, lease: Duration) {
    let remaining = remaining(store, name).await;
    assert!(is_left_of(remaining, lease), "{name}: {remaining:?} of {lease:?}");
}

/// Checks that the watch hears of a release, if the store pushes notices.
async fn assert_hears(watch: &mut Watch) {
    if !watch.is_confirmed() {
        return;
    }
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

/// Checks that the request is granted, after a notice if the store pushes them.
async fn assert_gets_its_turn(store: &Arc<dyn LockStore>, watch: &mut Watch, request: &Arc<AcquireRequest>) {
    if watch.is_confirmed() {
        assert!(tokio::time::timeout(PATIENCE, watch.notice()).await.is_ok(), "nothing heard");
    }
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
