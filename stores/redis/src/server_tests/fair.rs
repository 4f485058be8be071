//! Fair locks with our waiters only: the queue, its keys, its order, and its messages.

use lock_core::store::{Notice, Renewed, Standing, StoreErrorKind, Withdrawn};

use super::fair_rig::{ALIVE, CHANNEL, COUNTER, FIVE, LOCK, MANAGERS, QUEUE, Rig, TIMEOUTS, fair};
use super::wire::{Subscription, monitored};
use super::*;

pub(super) fn owners(items: &[&Item]) -> Vec<String> {
    items.iter().map(|item| item.owner.as_str().to_owned()).collect()
}

/// Takes the lock, and queues waiters for it.
pub(super) async fn with_waiters<const N: usize>(rig: &Rig) -> (Item, [Item; N]) {
    let holder = fair();
    rig.get(&holder).await;
    let waiters = std::array::from_fn(|_| fair());
    for waiter in &waiters {
        rig.queue_up(waiter, FIVE).await;
    }
    (holder, waiters)
}

/// A free lock without a queue is granted like a mutex, and leaves the same keys.
#[tokio::test]
async fn an_unwanted_lock_looks_like_a_mutex() {
    let rig = Rig::start().await;
    let mine = fair();
    let granted = rig.get(&mine).await;
    assert_eq!(granted.moment.get() + 1, granted.tokens[0].last);
    assert_eq!(rig.server.keys().await, [LOCK, COUNTER]);
    let fields: Vec<String> = rig.run(&["HGETALL", LOCK]).await;
    assert_eq!(fields, [mine.owner.as_str(), "1"]);
    assert_eq!(rig.release(&mine).await.held, [true]);
    assert_eq!(rig.server.keys().await, [COUNTER]);
}

/// An attempt without waiting leaves nothing behind, and does not pass the waiters.
#[tokio::test]
async fn an_attempt_without_waiting_does_not_queue() {
    let rig = Rig::start().await;
    let (holder, [first]) = with_waiters(&rig).await;
    busy(&rig.store, &[fair()]).await;
    assert_eq!(rig.queue().await, owners(&[&first]));
    let _: u64 = rig.run(&["DEL", LOCK]).await;
    let refused = busy(&rig.store, &[fair()]).await;
    assert!(refused.remaining.unwrap() <= Duration::from_secs(3) && !refused.remaining.unwrap().is_zero());
    assert_eq!(rig.release(&holder).await.held, [false]);
    assert_eq!(rig.queue().await, owners(&[&first]));
}

/// First in, first out, each granted by the release before; nothing is left at the end.
#[tokio::test]
async fn waiters_are_served_in_order() {
    let rig = Rig::start().await;
    let (holder, waiters) = with_waiters::<4>(&rig).await;
    let mut last = holder;
    for waiter in waiters {
        assert_eq!(rig.release(&last).await.held, [true]);
        assert_eq!(rig.holder().await.as_deref(), Some(waiter.owner.as_str()));
        last = waiter;
    }
    rig.release(&last).await;
    rig.no_keys_but_the_counter().await;
}

/// Asking again keeps the place and its deadline: the wait of the first request counts.
#[tokio::test]
async fn asking_again_keeps_the_place() {
    let rig = Rig::start().await;
    let (_holder, [first, second]) = with_waiters(&rig).await;
    let before = rig.deadlines().await;
    rig.queue_up(&first, Duration::from_secs(100)).await;
    rig.queue_up(&second, Duration::from_secs(100)).await;
    assert_eq!(rig.queue().await, owners(&[&first, &second]));
    assert_eq!(rig.deadlines().await, before);
}

/// A grant that is requested again is the same hold: count 1, a later token, never a shorter lease.
#[tokio::test]
async fn a_holder_that_asks_again_is_granted_again() {
    let rig = Rig::start().await;
    let mine = fair();
    let first = rig.get(&mine).await;
    let _: u64 = rig.run(&["PEXPIRE", LOCK, "60000"]).await;
    let again = rig.get(&mine).await;
    assert!(again.tokens[0].first > first.tokens[0].last);
    let fields: Vec<String> = rig.run(&["HGETALL", LOCK]).await;
    assert_eq!(fields, [mine.owner.as_str(), "1"]);
    let left: i64 = rig.run(&["PTTL", LOCK]).await;
    assert!(left > 30_000, "{left}");
}

/// The direct grant on the wire: message, token, hash, counter, lease, and the queue without the
/// grantee.
#[tokio::test]
async fn a_release_grants_the_lock_to_the_head() {
    let rig = Rig::start().await;
    let (holder, [first, second]) = with_waiters(&rig).await;
    let behind = rig.deadline(second.owner.as_str()).await;
    let mut channel = Subscription::start(&rig.server, &format!("{CHANNEL}:{}", first.owner.as_str())).await;
    let released = rig.release(&holder).await;
    assert_eq!((released.held, released.rivals), (vec![true].into(), Rivals::Some));
    let message = channel.next().await;
    let counter: String = rig.run(&["GET", COUNTER]).await;
    let (token, micros) = message.strip_prefix("g:").unwrap().split_once(':').unwrap();
    assert_eq!(token, counter);
    assert_eq!(micros.parse::<u64>().unwrap() + 1, token.parse::<u64>().unwrap());
    let fields: Vec<String> = rig.run(&["HGETALL", LOCK]).await;
    assert_eq!(fields, [first.owner.as_str(), "1"]);
    let left: i64 = rig.run(&["PTTL", LOCK]).await;
    assert!(left <= 5000, "{left}");
    assert_eq!(rig.queue().await, owners(&[&second]));
    assert_eq!(rig.deadline(second.owner.as_str()).await, behind - 5000);
    let records: Vec<String> = rig.run(&["HKEYS", ALIVE]).await;
    assert_eq!(records, owners(&[&second]));
    // It asks again or is kept, and then has its own lease.
    assert_eq!(rig.stay(&first).await, Renewed::Held);
    let left: i64 = rig.run(&["PTTL", LOCK]).await;
    assert!(left > 5000, "{left}");
}

/// A release with a hand-over is one call with few commands.
#[tokio::test]
async fn a_hand_over_stays_lean() {
    let rig = Rig::start().await;
    let (holder, [first]) = with_waiters(&rig).await;
    // Once unobserved, so that the script is known.
    rig.release(&holder).await;
    let second = fair();
    rig.queue_up(&second, FIVE).await;
    let lines = monitored(&rig.server, async {
        rig.release(&first).await;
    })
    .await;
    let inside = lines.iter().filter(|line| line.contains(" lua] ")).count();
    assert_eq!(lines.iter().filter(|line| line.contains("\"EVALSHA\"")).count(), 1, "{lines:#?}");
    assert!(inside <= 24, "{lines:#?}");
}

/// The lease of a direct grant is never longer than the requested one.
#[tokio::test]
async fn a_direct_grant_has_no_longer_lease_than_asked_for() {
    let rig = Rig::start().await;
    let (holder, waiter) = (fair(), fair());
    rig.get(&holder).await;
    let short = AcquireRequest::new(vec![waiter.clone()], Duration::from_secs(2), TIMEOUT);
    assert!(matches!(rig.ask(short.queued(FIVE)).await, Acquired::Busy(_)));
    rig.release(&holder).await;
    let left: i64 = rig.run(&["PTTL", LOCK]).await;
    assert!(left > 0 && left <= 2000, "{left}");
}

/// A waiter that needs other keys too cannot be granted this one alone. It is woken, and keeps its
/// place until it asks.
#[tokio::test]
async fn a_waiter_for_several_keys_is_woken_and_not_granted() {
    let rig = Rig::start().await;
    let (holder, both) = (fair(), [fair(), Item { kind: Kind::Fair, ..item("b") }]);
    rig.get(&holder).await;
    let waits = rig.ask(request(&both).queued(FIVE)).await;
    assert!(matches!(waits, Acquired::Busy(_)));
    let mut channel =
        Subscription::start(&rig.server, &format!("{CHANNEL}:{}", both[0].owner.as_str())).await;
    rig.release(&holder).await;
    assert_eq!(channel.next().await, "0");
    assert_eq!(rig.holder().await, None);
    assert_eq!(rig.queue().await, owners(&[&both[0]]));
    let refused = busy(&rig.store, &[fair()]).await;
    assert_eq!(refused.item, 0);
    granted_by(&rig.store, request(&both).queued(FIVE)).await;
    release(&rig.store, &both).await.unwrap();
    let keys = rig.server.keys().await;
    assert!(keys.iter().all(|key| key.starts_with("redisson_lock_token:")), "{keys:?}");
}

/// A request that comes too late neither takes nor queues.
#[tokio::test]
async fn a_late_wish_does_not_queue() {
    let rig = Rig::start().await;
    let (_holder, []) = with_waiters(&rig).await;
    let late = Arc::new(request(&[fair()]).queued(FIVE));
    let error = acquire_late(&rig.store, late).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::TooLate);
    assert_eq!(rig.server.keys().await, [LOCK, COUNTER]);
}

/// Giving up takes the wait off the others, once, and leaves no key when all have gone. Without
/// Redisson's waiters the wait is also taken off those in front: nobody reads their deadlines.
#[tokio::test]
async fn waiters_that_give_up_leave_nothing() {
    let rig = Rig::start().await;
    let (holder, [first, second, third]) = with_waiters(&rig).await;
    let before = rig.deadlines().await;
    assert_eq!(rig.withdraw(&second).await, Withdrawn::Settled);
    assert_eq!(rig.deadlines().await, [before[0] - 5000, before[2] - 5000]);
    assert_eq!(rig.withdraw(&second).await, Withdrawn::Settled);
    assert_eq!(rig.deadlines().await, [before[0] - 5000, before[2] - 5000]);
    rig.withdraw(&third).await;
    rig.withdraw(&first).await;
    assert_eq!(rig.server.keys().await, [LOCK, COUNTER]);
    assert_eq!(rig.holder().await.as_deref(), Some(holder.owner.as_str()));
}

/// A head that gives up a free lock passes it on; so does a withdrawn holder.
#[tokio::test]
async fn who_withdraws_passes_the_lock_on() {
    let rig = Rig::start().await;
    let (_holder, [first, second, third]) = with_waiters(&rig).await;
    let _: u64 = rig.run(&["DEL", LOCK]).await;
    rig.withdraw(&second).await;
    assert_eq!(rig.holder().await, None, "the head is to ask for it itself");
    rig.withdraw(&first).await;
    assert_eq!(rig.holder().await.as_deref(), Some(third.owner.as_str()));
    let fourth = fair();
    rig.queue_up(&fourth, FIVE).await;
    rig.withdraw(&third).await;
    assert_eq!(rig.holder().await.as_deref(), Some(fourth.owner.as_str()));
    rig.withdraw(&fourth).await;
    rig.no_keys_but_the_counter().await;
}

/// Releasing a lock that is not held does nothing at all.
#[tokio::test]
async fn releasing_what_is_not_held_does_nothing() {
    let rig = Rig::start().await;
    let (_holder, [first]) = with_waiters(&rig).await;
    let lines = monitored(&rig.server, async {
        assert_eq!(rig.release(&fair()).await.held, [false]);
        assert_eq!(rig.release(&first).await.held, [false]);
    })
    .await;
    assert!(!lines.iter().any(|line| line.to_uppercase().contains("\"PUBLISH\"")), "{lines:#?}");
    assert_eq!(rig.queue().await, owners(&[&first]));
}

/// Any call passes over heads that are not kept, with all effects of their leaving.
#[tokio::test]
async fn dead_heads_are_passed_over() {
    let rig = Rig::start().await;
    let (holder, [first, second, third, fourth]) = with_waiters(&rig).await;
    let before = rig.deadline(fourth.owner.as_str()).await;
    rig.die(&first).await;
    rig.die(&second).await;
    rig.release(&holder).await;
    assert_eq!(rig.holder().await.as_deref(), Some(third.owner.as_str()));
    assert_eq!(rig.queue().await, owners(&[&fourth]));
    assert_eq!(rig.deadline(fourth.owner.as_str()).await, before - 15_000);
    let records: Vec<String> = rig.run(&["HKEYS", ALIVE]).await;
    assert_eq!(records, owners(&[&fourth]));
    rig.die(&fourth).await;
    rig.release(&third).await;
    rig.no_keys_but_the_counter().await;
}

/// A newcomer gets a free lock with dead waiters only. If one waiter is alive, the newcomer wakes
/// it.
#[tokio::test]
async fn a_newcomer_passes_over_the_dead() {
    let rig = Rig::start().await;
    let (_holder, [first, second]) = with_waiters(&rig).await;
    let _: u64 = rig.run(&["DEL", LOCK]).await;
    rig.die(&first).await;
    let mut channel = Subscription::start(&rig.server, &format!("{CHANNEL}:{}", second.owner.as_str())).await;
    busy(&rig.store, &[fair()]).await;
    assert_eq!(channel.next().await, "0");
    rig.die(&second).await;
    granted(&rig.store, &[fair()]).await;
    assert_eq!(rig.server.keys().await, [LOCK, COUNTER]);
}

/// Renewal tells a waiter how it stands, in each of its states.
#[tokio::test]
async fn keeping_says_how_the_waiter_stands() {
    let rig = Rig::start().await;
    let (holder, [first, second]) = with_waiters(&rig).await;
    let Renewed::Waiting(left) = rig.stay(&second).await else { panic!("not waiting") };
    assert!(left > FIVE && left <= LEASE, "{left:?}");
    let _: u64 = rig.run(&["DEL", LOCK]).await;
    assert_eq!(rig.stay(&first).await, Renewed::Waiting(Duration::from_millis(1)));
    let Renewed::Waiting(left) = rig.stay(&second).await else { panic!("not waiting") };
    assert!(left <= Duration::from_secs(3), "{left:?}");
    assert_eq!(rig.stay(&fair()).await, Renewed::Gone);
    assert_eq!(rig.stay(&holder).await, Renewed::Gone);
    rig.get(&first).await;
    let both = rig.renew(&[first.clone(), second.clone()], Standing::Waiter).await;
    assert_eq!(both[0], Renewed::Held);
    assert!(matches!(both[1], Renewed::Waiting(_)));
    assert_eq!(rig.renew(&[first, second], Standing::Holder).await, [Renewed::Held, Renewed::Gone]);
}

/// All waiters of one call count as alive before the first of them removes dead ones.
#[tokio::test]
async fn waiters_that_are_kept_together_are_alive_together() {
    let rig = Rig::start().await;
    let (_holder, [first, second]) = with_waiters(&rig).await;
    rig.die(&first).await;
    rig.die(&second).await;
    let kept = rig.renew(&[second.clone(), first.clone()], Standing::Waiter).await;
    assert!(kept.iter().all(|kept| matches!(kept, Renewed::Waiting(_))), "{kept:?}");
    assert_eq!(rig.queue().await, owners(&[&first, &second]));
}

/// The keys of a queue of ours expire soon after the last waiter has died. Each keeping postpones
/// that.
#[tokio::test]
async fn the_keys_of_a_queue_end_with_its_waiters() {
    let rig = Rig::start().await;
    let (_holder, [first]) = with_waiters(&rig).await;
    for _ in 0..2 {
        for key in [QUEUE, TIMEOUTS, ALIVE, MANAGERS] {
            let left: i64 = rig.run(&["PTTL", key]).await;
            assert!(left > 3000 && left <= 10_000, "{key} {left}");
            let _: u64 = rig.run(&["PEXPIRE", key, "2000"]).await;
        }
        rig.stay(&first).await;
    }
}

/// Renewal a waiter postpones a deadline that is near. Our store never purges it because of its
/// deadline.
#[tokio::test]
async fn a_live_waiter_stays_whatever_its_deadline() {
    let rig = Rig::start().await;
    let (holder, [first, second]) = with_waiters(&rig).await;
    let _: f64 = rig.run(&["ZINCRBY", TIMEOUTS, "-1000000", first.owner.as_str()]).await;
    rig.queue_up(&second, FIVE).await;
    assert_eq!(rig.queue().await, owners(&[&first, &second]));
    let now = rig.now().await;
    rig.stay(&first).await;
    let ahead = rig.deadline(first.owner.as_str()).await - now;
    assert!((300_000..330_000).contains(&ahead), "{ahead}");
    rig.release(&holder).await;
    assert_eq!(rig.holder().await.as_deref(), Some(first.owner.as_str()));
}

/// Notices of the watch concern only the waiter itself: a grant with its token, anything else as a
/// hint.
#[tokio::test]
async fn the_watch_hears_of_the_grant() {
    let rig = Rig::start().await;
    let (holder, [first, second]) = with_waiters(&rig).await;
    let mut watch = rig.store.watch(Arc::new(request(std::slice::from_ref(&second)))).await.unwrap();
    assert!(watch.is_confirmed());
    rig.release(&holder).await;
    rig.release(&first).await;
    let notice = tokio::time::timeout(FIVE, watch.notice()).await.unwrap();
    let counter: u64 = rig.run(&["GET", COUNTER]).await;
    let Notice::Granted { token, moment } = notice else { panic!("{notice:?}") };
    assert_eq!((token.get(), moment.get() + 1), (counter, counter));
    let _: u64 = rig.run(&["PUBLISH", &format!("{CHANNEL}:{}", second.owner.as_str()), "0"]).await;
    assert_eq!(tokio::time::timeout(FIVE, watch.notice()).await.unwrap(), Notice::Retry);
    assert_eq!(watch.try_notice(), None);
}

/// A force release frees the lock and wakes the head; the queue stays.
#[tokio::test]
async fn a_force_release_wakes_the_head() {
    let rig = Rig::start().await;
    let (_holder, [first, second]) = with_waiters(&rig).await;
    assert!(rig.store.force_release(key("a")).await.unwrap());
    assert_eq!(rig.holder().await.as_deref(), Some(first.owner.as_str()));
    assert_eq!(rig.queue().await, owners(&[&second]));
}

/// A lingering release keeps the lock, and tells the head that it ends sooner.
#[tokio::test]
async fn a_lingering_release_tells_the_head() {
    let rig = Rig::start().await;
    let (holder, [first]) = with_waiters(&rig).await;
    let mut channel = Subscription::start(&rig.server, &format!("{CHANNEL}:{}", first.owner.as_str())).await;
    let linger = ReleaseRequest { linger: Duration::from_secs(1), ..release_request(&[holder]) };
    assert_eq!(rig.store.release(Arc::new(linger)).await.unwrap().held, [true]);
    assert_eq!(channel.next().await, "0");
    let left: i64 = rig.run(&["PTTL", LOCK]).await;
    assert!(left <= 1000, "{left}");
}

/// A waiter that is far behind is alive as long as its manager keeps others.
#[tokio::test]
async fn a_far_waiter_lives_for_long_and_goes_with_its_manager() {
    let rig = Rig::start().await;
    let (holder, [near, far]) = with_waiters(&rig).await;
    let stranger = Item { owner: OwnerId::new("0c0ffee0-0000-4000-8000-000000000000:1"), ..fair() };
    rig.queue_up(&stranger, FIVE).await;
    assert!(matches!(rig.renew(std::slice::from_ref(&far), Standing::Far).await[..], [Renewed::Waiting(_)]));
    rig.die(&near).await;
    // For three seconds nothing has shown that the manager is alive.
    let _: u64 = rig.run(&["HSET", MANAGERS, far.owner.as_str().rsplit_once(':').unwrap().0, "1"]).await;
    assert!(matches!(rig.stay(&stranger).await, Renewed::Waiting(_)));
    assert_eq!(rig.queue().await, owners(&[&stranger]));
    assert_eq!(rig.stay(&far).await, Renewed::Gone);

    rig.queue_up(&far, FIVE).await;
    assert!(matches!(rig.renew(std::slice::from_ref(&far), Standing::Far).await[..], [Renewed::Waiting(_)]));
    rig.release(&holder).await;
    rig.release(&stranger).await;
    assert_eq!(rig.holder().await.as_deref(), Some(far.owner.as_str()));
    rig.release(&far).await;
    rig.no_keys_but_the_counter().await;
}

/// Deadlines that nobody reads are not written, but are right when a Redisson waiter comes.
#[tokio::test]
async fn a_queue_of_ours_alone_is_not_read() {
    let rig = Rig::start().await;
    let (holder, [first, second, third]) = with_waiters(&rig).await;
    let lines = monitored(&rig.server, async {
        rig.release(&holder).await;
        assert!(matches!(rig.stay(&second).await, Renewed::Waiting(_)));
        rig.withdraw(&third).await;
        rig.queue_up(&third, FIVE).await;
    })
    .await;
    for command in ["LRANGE", "HKEYS", "HGETALL", "HVALS"] {
        let read = lines.iter().find(|line| line.to_uppercase().contains(&format!("\"{command}")));
        assert_eq!(read, None, "{lines:#?}");
    }
    rig.release(&first).await;
    let java = super::fair_rig::Java::new(2, FIVE);
    rig.java_lock(&java, rig.now().await).await;
    assert!(matches!(rig.stay(&third).await, Renewed::Waiting(_)));
    let late: Option<i64> = rig.run(&["HGET", MANAGERS, ""]).await;
    assert_eq!(late, None);
    assert_eq!(rig.gaps().await, [5000]);
}

/// The lease of a dead holder ends without a message. The next waiter that is kept tells a far
/// waiter that its turn has come.
#[tokio::test]
async fn a_far_head_is_told_of_a_free_lock_by_others() {
    let rig = Rig::start().await;
    let (_holder, [far, near]) = with_waiters(&rig).await;
    assert!(matches!(rig.renew(std::slice::from_ref(&far), Standing::Far).await[..], [Renewed::Waiting(_)]));
    let mut channel = Subscription::start(&rig.server, &format!("{CHANNEL}:{}", far.owner.as_str())).await;
    let _: u64 = rig.run(&["DEL", LOCK]).await;
    assert!(matches!(rig.stay(&near).await, Renewed::Waiting(_)));
    assert_eq!(channel.next().await, "0");
}
