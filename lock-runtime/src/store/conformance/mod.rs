//! The suite that every store has to pass: one test per behaviour, the same for all of them.
//!
//! A store joins with one line in a test module of its own:
//!
//! ```ignore
//! crate::store::conformance::conformance!(subject);                       // async fn subject() -> Subject
//! crate::store::conformance::conformance!(subject, start_paused = true);  // what tokio::test should be given
//! ```
//!
//! Every test gets a subject whose keys nobody else uses, so tests run side by side on one server. Time passes by
//! `tokio::time::sleep`: at once on the memory store, whose tests run under paused time, and really on a server.
//! On a server a test may be stopped for a while at any point, so a lease that has to last is [`LONG`], and nothing
//! is expected of a [`SHORT`] one but that it is over after [`SHORT_IS_OVER`].

pub(crate) mod acquire;
pub(crate) mod keep;
pub(crate) mod release;
pub(crate) mod status;
pub(crate) mod takeover;
pub(crate) mod tokens;
pub(crate) mod watch;
pub(crate) mod withdraw;

use std::any::Any;
use std::sync::Arc;
use std::time::Duration;

use super::{
    AcquireRequest, Acquired, BoxFuture, Busy, Granted, Item, KeepItem, KeepRequest, Kept, Kind, LockStatus,
    LockStore, Notice, ReleaseRequest, Released, StoreError, Watch, Withdrawn,
};
use crate::key::LockKey;
use crate::token::OwnerId;

/// A lease that does not end during a test.
const LONG: Duration = Duration::from_secs(60);
/// A lease that is meant to end.
const SHORT: Duration = Duration::from_millis(200);
/// After this a [`SHORT`] lease that began before has ended.
const SHORT_IS_OVER: Duration = Duration::from_millis(300);
/// How long a test waits for what has to come.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long a test waits for what must not come.
const SILENCE: Duration = Duration::from_millis(150);

/// Executes a request on the first handle's store later than its time-out after it was sent.
pub(crate) type SendLate =
    Box<dyn Fn(Arc<AcquireRequest>) -> BoxFuture<Result<Acquired, StoreError>> + Send + Sync>;

/// A store under test: two handles, as two managers have them, on the same data.
pub(crate) struct Subject {
    store: Arc<dyn LockStore>,
    other: Arc<dyn LockStore>,
    send_late: Option<SendLate>,
    _keeps: Box<dyn Any + Send + Sync>,
}

impl Subject {
    pub(crate) fn new(store: Arc<dyn LockStore>, other: Arc<dyn LockStore>) -> Self {
        Self { store, other, send_late: None, _keeps: Box::new(()) }
    }

    /// How a request gets late. Without it the test of late requests passes without having tested anything.
    #[must_use]
    pub(crate) fn late_through(mut self, send_late: SendLate) -> Self {
        self.send_late = Some(send_late);
        self
    }

    /// Keeps something alive for as long as the test runs, a server for example.
    #[must_use]
    #[allow(dead_code, reason = "for stores that need more than themselves")]
    pub(crate) fn keeping(mut self, something: impl Any + Send + Sync) -> Self {
        self._keeps = Box::new(something);
        self
    }
}

fn key(name: &str) -> LockKey {
    LockKey::new(name).unwrap()
}

/// Owners have to look like owners: stores leave alone what does not.
fn owner(number: u32) -> OwnerId {
    OwnerId::new(format!("c0ffee00-0000-4000-8000-000000000000:{number}"))
}

fn item(name: &str, number: u32) -> Item {
    Item { key: key(name), kind: Kind::Mutex, owner: owner(number) }
}

fn items(names: &[&str], number: u32) -> Vec<Item> {
    names.iter().map(|name| item(name, number)).collect()
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

async fn busy(store: &Arc<dyn LockStore>, request: impl Into<Arc<AcquireRequest>>) -> Busy {
    match acquire(store, request).await {
        Acquired::Granted(granted) => panic!("{granted:?}"),
        Acquired::Busy(busy) => busy,
    }
}

fn giving_back(items: Vec<Item>) -> ReleaseRequest {
    ReleaseRequest { items, linger: Duration::ZERO, then: None, own_watches: 0, timeout: PATIENCE }
}

async fn release(store: &Arc<dyn LockStore>, request: ReleaseRequest) -> Released {
    store.release(Arc::new(request)).await.unwrap()
}

async fn keep(store: &Arc<dyn LockStore>, items: Vec<Item>, lease: Duration) -> Vec<Kept> {
    let items = items.into_iter().map(|item| KeepItem::hold(item, lease)).collect();
    store.keep(Arc::new(KeepRequest { items, timeout: PATIENCE })).await.unwrap()
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

/// The lease has this much left, give or take the time a test may have been stopped.
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

async fn assert_hears_nothing(watch: &mut Watch) {
    tokio::time::sleep(SILENCE).await;
    assert_eq!(watch.try_notice(), None);
}

/// Throws away what has been heard so far.
async fn drain(watch: &mut Watch) {
    tokio::time::sleep(SILENCE).await;
    while watch.try_notice().is_some() {}
}

/// One `#[tokio::test]` per behaviour. See the [module](self).
macro_rules! conformance {
    ($make:ident $(, $attribute:ident = $value:expr)*) => {
        $crate::store::conformance::conformance! { @all [$make] [$($attribute = $value),*]
            acquire {
                a_free_key_is_granted_and_a_held_one_is_busy
                both_handles_see_the_same_locks
                an_expired_lease_frees_the_key
                waiting_as_long_as_busy_says_is_enough
                acquire_of_two_items_is_all_or_nothing
                busy_names_the_first_busy_item
                two_items_may_have_two_owners
                resent_acquire_is_the_same_grant_and_never_shortens
                resent_acquire_takes_the_item_that_was_lost_in_between
                resent_acquire_that_is_busy_changes_nothing
                an_owner_whose_lease_ended_starts_again
                a_call_that_is_never_polled_does_nothing
                a_call_has_its_effect_when_it_is_polled_and_not_before
                one_of_many_rivals_gets_the_key
                one_of_many_rivals_gets_both_keys_whatever_their_order
                late_request_is_refused
                the_store_says_that_it_can_be_used
            }
            tokens {
                tokens_grow_across_grants_releases_and_expiry
                tokens_of_a_fresh_key_start_at_the_stores_clock
                range_of_tokens_belongs_to_one_grant
                the_largest_range_is_granted
                each_item_has_its_own_range
                resent_acquire_gets_new_tokens
                a_busy_answer_uses_no_tokens
                token_floor_is_respected
                a_floor_below_the_counter_changes_nothing
                a_counter_that_cannot_grow_is_an_error_and_takes_nothing
            }
            release {
                release_frees_the_key
                release_said_twice_finds_nothing
                release_by_a_stranger_touches_nothing
                release_after_the_lease_finds_nothing
                release_after_the_lease_touches_nothing_of_the_next_holder
                release_of_two_items_answers_for_each
                linger_keeps_the_key_taken_and_never_lengthens
                linger_works_on_two_items
                linger_by_a_stranger_touches_nothing
                a_lingering_key_can_be_freed_at_once
            }
            takeover {
                takeover_follows_a_release
                takeover_happens_only_when_nobody_else_listens
                takeover_is_not_stopped_by_our_own_watch
                takeover_ignores_phantoms_when_told
                takeover_of_two_items
                takeover_needs_a_release_that_freed_something
                takeover_needs_a_release_that_freed_every_item
                takeover_does_not_follow_a_lingering_release
                takeover_is_stamped_like_any_acquire
                takeover_can_be_withdrawn
            }
            keep {
                keep_lengthens
                keep_never_shortens
                keep_renews_each_item_on_its_own
                keep_does_not_revive
                keep_by_a_stranger_touches_nothing
            }
            withdraw {
                withdraw_frees_what_was_taken_and_settles_after_latest
                withdraw_of_what_was_never_sent_is_settled
                withdraw_of_a_busy_acquire_touches_nothing_of_the_holder
                withdraw_frees_every_item_that_is_ours_and_no_other
            }
            watch {
                watch_hears_release_force_release_and_withdraw
                watch_hears_the_releases_of_its_own_handle_as_announced
                watch_of_two_keys_hears_both
                watch_hears_a_lingering_release
                watch_does_not_hear_what_frees_nothing
                watch_does_not_hear_other_keys
                all_watches_of_a_key_hear
                listeners_are_counted_without_our_own
            }
            status {
                status_of_an_unknown_key_is_free
                status_shows_holder_lease_and_token
                status_remembers_the_token_of_a_free_key
                force_release_frees_whoever_holds
                force_release_keeps_the_counter
                force_release_of_a_free_key_says_so
                a_holder_after_force_release_is_a_stranger
            }
        }
    };
    (@all $make:tt $attributes:tt $($group:ident { $($name:ident)* })*) => {
        $( mod $group {
            $crate::store::conformance::conformance! { @group $make $attributes $group $($name)* }
        } )*
    };
    (@group $make:tt $attributes:tt $group:ident $($name:ident)*) => {
        $( $crate::store::conformance::conformance! { @test $make $attributes $group $name } )*
    };
    (@test [$make:ident] [$($attributes:tt)*] $group:ident $name:ident) => {
        #[tokio::test($($attributes)*)]
        async fn $name() {
            $crate::store::conformance::$group::$name(super::$make().await).await;
        }
    };
}
pub(crate) use conformance;
