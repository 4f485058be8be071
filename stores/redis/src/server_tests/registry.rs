//! The bookkeeping of subscriptions without a server, which the test simulates.

use lock_core::FencingToken;
use lock_core::internal::clock::Tick;
use lock_core::store::{Moment, Notice};
use proptest::prelude::*;
use tokio::sync::mpsc;

use super::super::registry::{Own, Readiness, Registry, Ring};
use super::*;

const LINGER: Duration = Duration::from_millis(100);

fn at(millis: u64) -> Tick {
    Tick::from_nanos(millis * 1_000_000)
}

fn name(number: usize) -> Arc<str> {
    Arc::from(format!("channel {number}"))
}

fn texts(names: &[Arc<str>]) -> Vec<&str> {
    names.iter().map(|name| &**name).collect()
}

/// Sends the watchers' messages, as is done when the mutex is released.
fn ring(registry: &mut Registry) {
    std::mem::take(&mut registry.rings).into_iter().for_each(Ring::ring);
}

fn add(registry: &mut Registry, number: usize, now: u64) -> (u64, Readiness, mpsc::Receiver<Notice>) {
    let (sender, notices) = mpsc::channel(4);
    let (id, readiness, _) = registry.add(&name(number), sender, at(now));
    (id, readiness, notices)
}

fn is_ready(readiness: Readiness) -> Option<bool> {
    match readiness {
        Readiness::Known(ready) => Some(ready),
        Readiness::Awaited(mut ready) => ready.try_recv().ok(),
    }
}

/// Returns a registry on a connection, with channel 0 confirmed and one watcher of it.
fn confirmed() -> (Registry, u64, u64, mpsc::Receiver<Notice>) {
    let mut registry = Registry::default();
    let (id, readiness, notices) = add(&mut registry, 0, 0);
    let generation = registry.begin();
    registry.established(generation);
    assert_eq!(texts(&registry.take_todo(10)), ["channel 0"]);
    registry.subscribed(generation, "channel 0");
    ring(&mut registry);
    assert_eq!(is_ready(readiness), Some(true));
    (registry, generation, id, notices)
}

/// A grant gets the last place in a queue full of hints, and blocks nobody if even that is taken.
#[test]
fn a_grant_finds_room_among_hints() {
    let (mut registry, generation, _, mut notices) = confirmed();
    let granted = Notice::Granted { token: FencingToken::new(2), moment: Moment::new(1) };
    for notice in [Notice::Retry; 5].into_iter().chain([granted, granted]) {
        registry.message(generation, "channel 0", notice);
    }
    ring(&mut registry);
    let heard: Vec<Notice> = std::iter::from_fn(|| notices.try_recv().ok()).collect();
    assert_eq!(heard, [Notice::Retry, Notice::Retry, Notice::Retry, granted]);
}

#[test]
fn a_watch_during_an_unsubscribe_is_subscribed_again() {
    let (mut registry, generation, id, _notices) = confirmed();
    assert!(registry.remove(&name(0), id, at(0)));
    assert!(registry.take_idle(at(99), LINGER, 10).is_empty());
    assert_eq!(texts(&registry.take_idle(at(100), LINGER, 10)), ["channel 0"]);
    assert_eq!(registry.own("channel 0"), Own::default(), "no longer counted on");

    let (_, readiness, mut notices) = add(&mut registry, 0, 100);
    let Readiness::Awaited(mut ready) = readiness else { panic!("it is being left") };
    assert!(registry.unsubscribed(generation, "channel 0"), "there is something to do");
    ring(&mut registry);
    assert!(ready.try_recv().is_err());
    assert_eq!(texts(&registry.take_todo(10)), ["channel 0"]);
    registry.subscribed(generation, "channel 0");
    ring(&mut registry);
    assert_eq!(ready.try_recv(), Ok(true));
    assert!(notices.try_recv().is_err(), "no notice to a watch that already has its answer");
}

#[test]
fn pushes_of_an_earlier_connection_do_not_count() {
    let (mut registry, old, _, mut notices) = confirmed();
    registry.disconnected(old);
    ring(&mut registry);
    assert_eq!(notices.try_recv(), Ok(Notice::Retry));
    let new = registry.begin();
    registry.message(old, "channel 0", Notice::Retry);
    ring(&mut registry);
    registry.subscribed(old, "channel 0");
    ring(&mut registry);
    registry.disconnected(old);
    ring(&mut registry);
    assert!(!registry.unsubscribed(old, "channel 0"));
    ring(&mut registry);
    assert!(registry.is_connected(new));
    assert!(notices.try_recv().is_err());
    assert_eq!(registry.own("channel 0"), Own { subscribed: false, watches: 1 });
    registry.subscribed(new, "channel 0");
    ring(&mut registry);
    assert_eq!(notices.try_recv(), Ok(Notice::Resubscribed));
}

#[test]
fn a_refusal_stands_for_a_while() {
    let mut registry = Registry::default();
    let (_, first, _notices) = add(&mut registry, 0, 0);
    let generation = registry.begin();
    registry.established(generation);
    registry.take_todo(10);
    registry.refused("channel 0", at(0));
    ring(&mut registry);
    assert_eq!(is_ready(first), Some(false));
    let (_, second, _notices) = add(&mut registry, 0, 29_000);
    assert_eq!(is_ready(second), Some(false));
    assert!(registry.take_todo(10).is_empty());
    let (_, third, _notices) = add(&mut registry, 0, 30_000);
    assert_eq!(texts(&registry.take_todo(10)), ["channel 0"]);
    registry.subscribed(generation, "channel 0");
    ring(&mut registry);
    assert_eq!(is_ready(third), Some(true));
}

#[test]
fn an_unreachable_server_leaves_no_one_waiting_and_nothing_behind() {
    let mut registry = Registry::default();
    let (id, first, mut notices) = add(&mut registry, 0, 0);
    let (other, _, _other_notices) = add(&mut registry, 1, 0);
    registry.remove(&name(1), other, at(0));
    registry.begin();
    registry.unreachable();
    ring(&mut registry);
    assert_eq!(is_ready(first), Some(false));
    let (second_id, second, _notices) = add(&mut registry, 0, 0);
    assert_eq!(is_ready(second), Some(false), "at once, while it is known to be down");
    let generation = registry.begin();
    registry.established(generation);
    assert_eq!(texts(&registry.take_todo(10)), ["channel 0"], "channel 1 is forgotten");
    registry.subscribed(generation, "channel 0");
    ring(&mut registry);
    assert_eq!(notices.try_recv(), Ok(Notice::Resubscribed));
    registry.remove(&name(0), id, at(0));
    registry.remove(&name(0), second_id, at(0));
    registry.unreachable();
    ring(&mut registry);
    assert!(registry.is_empty());
}

#[test]
fn a_channel_whose_unsubscription_was_lost_is_not_subscribed_again() {
    let (mut registry, generation, id, _notices) = confirmed();
    registry.remove(&name(0), id, at(0));
    assert_eq!(texts(&registry.take_idle(at(100), LINGER, 10)), ["channel 0"]);
    registry.disconnected(generation);
    registry.begin();
    assert!(registry.take_todo(10).is_empty() && registry.is_empty());
}

/// Channels of fair waiters are never used again, so nothing else would ever end the subscription.
#[test]
fn a_channel_that_is_left_before_its_subscription_is_answered_is_unsubscribed_in_the_end() {
    let mut registry = Registry::default();
    let generation = registry.begin();
    registry.established(generation);
    let (id, _, _) = add(&mut registry, 0, 0);
    assert_eq!(texts(&registry.take_todo(10)), ["channel 0"]);
    registry.remove(&name(0), id, at(0));
    assert!(registry.take_idle(at(100), LINGER, 10).is_empty());
    registry.subscribed(generation, "channel 0");
    assert!(registry.take_idle(at(199), LINGER, 10).is_empty());
    assert_eq!(texts(&registry.take_idle(at(200), LINGER, 10)), ["channel 0"]);
    registry.unsubscribed(generation, "channel 0");
    assert!(registry.is_empty());
}

#[test]
fn too_many_idle_channels_are_left_before_their_time() {
    let mut registry = Registry::default();
    for number in 0..5000 {
        let (id, _, _) = add(&mut registry, number, 0);
        registry.remove(&name(number), id, at(0));
    }
    registry.take_idle(at(0), LINGER, 10_000);
    let left = (0..5000).filter(|&number| registry.add(&name(number), mpsc::channel(1).0, at(0)).2).count();
    assert_eq!(left, 5000 - 4096, "these were new again");
}

#[derive(Clone, Debug)]
enum Op {
    Add(usize),
    Remove(usize),
    Advance(u64),
    /// The subscriber's task runs: SUBSCRIBE and UNSUBSCRIBE, with the events in between.
    Work,
    /// The task sends SUBSCRIBE, which is answered with its next work.
    Ask,
    /// The task looks for channels to leave while SUBSCRIBE is under way.
    Leave,
    /// The server ends a subscription by itself.
    End(usize),
    Break,
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        4 => (0..3usize).prop_map(Op::Add),
        4 => (0..20usize).prop_map(Op::Remove),
        2 => (1..150u64).prop_map(Op::Advance),
        6 => Just(Op::Work),
        2 => Just(Op::Ask),
        1 => Just(Op::Leave),
        1 => (0..3usize).prop_map(Op::End),
        1 => Just(Op::Break),
    ]
}

proptest! {
    /// After the subscriber's task has caught up, the server has exactly the watched and the
    /// lingering channels, and every watcher hears a message.
    #[test]
    fn the_server_ends_up_with_what_is_watched(ops in proptest::collection::vec(op(), 1..60)) {
        let mut registry = Registry::default();
        let mut server = std::collections::BTreeSet::<usize>::new();
        let mut watchers: Vec<(usize, u64, mpsc::Receiver<Notice>)> = Vec::new();
        let mut now = 0;
        let mut generation = registry.begin();
        registry.established(generation);
        let number = |name: &Arc<str>| name.rsplit_once(' ').unwrap().1.parse::<usize>().unwrap();
        let mut asked: Vec<Arc<str>> = Vec::new();
        let leave = |registry: &mut Registry, server: &mut std::collections::BTreeSet<usize>, generation, now| {
            for name in registry.take_idle(at(now), LINGER, 2) {
                server.remove(&number(&name));
                registry.unsubscribed(generation, &name);
            }
        };
        let work = |registry: &mut Registry,
                    server: &mut std::collections::BTreeSet<usize>,
                    asked: &mut Vec<Arc<str>>,
                    generation,
                    now| {
            asked.extend(registry.take_todo(2));
            for name in asked.drain(..) {
                server.insert(number(&name));
                registry.subscribed(generation, &name);
                ring(registry);
            }
            leave(registry, server, generation, now);
        };
        for op in ops {
            match op {
                Op::Add(number) => {
                    let (id, _, notices) = add(&mut registry, number, now);
                    watchers.push((number, id, notices));
                }
                Op::Remove(index) if !watchers.is_empty() => {
                    let (number, id, _) = watchers.swap_remove(index % watchers.len());
                    registry.remove(&name(number), id, at(now));
                }
                Op::Remove(_) => {}
                Op::Advance(millis) => now += millis,
                Op::Work => work(&mut registry, &mut server, &mut asked, generation, now),
                Op::Ask => asked.extend(registry.take_todo(2)),
                Op::Leave => leave(&mut registry, &mut server, generation, now),
                Op::End(number) => {
                    if server.remove(&number) {
                        registry.unsubscribed(generation, &name(number));
                        ring(&mut registry);
                    }
                }
                Op::Break => {
                    asked.clear();
                    registry.disconnected(generation);
                    ring(&mut registry);
                    server.clear();
                    generation = registry.begin();
                    registry.established(generation);
                }
            }
        }
        for _ in 0..10 {
            work(&mut registry, &mut server, &mut asked, generation, now);
        }
        for (number, _, notices) in &mut watchers {
            prop_assert!(server.contains(number));
            let own = registry.own(&name(*number));
            prop_assert!(own.subscribed && own.watches > 0, "{own:?}");
            while notices.try_recv().is_ok() {}
            registry.message(generation, &name(*number), Notice::Retry);
            ring(&mut registry);
            prop_assert_eq!(notices.try_recv(), Ok(Notice::Retry));
        }
        for (number, id, _) in watchers {
            registry.remove(&name(number), id, at(now));
        }
        now += 1000;
        for _ in 0..10 {
            work(&mut registry, &mut server, &mut asked, generation, now);
        }
        prop_assert!(registry.is_empty() && server.is_empty());
        prop_assert_eq!(registry.next_idle(LINGER), None);
    }
}
