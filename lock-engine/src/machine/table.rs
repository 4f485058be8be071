//! The table of states in docs/architecture.md, with a test for each row.

use std::time::Duration;

use lock_core::store::{Granted, StoreErrorKind};

use super::tests::{CAP, NewCaller, Op, Sort, USUAL, World};
use super::*;
use crate::terms::Wait;

/// Makes a machine with one caller that wants its lock.
fn wanted(sort: Sort, caller: NewCaller) -> World {
    let mut world = World::new(sort);
    world.apply(Op::Enqueue(caller));
    world
}

/// Lets the driver begin a call.
fn asking(sort: Sort, caller: NewCaller) -> World {
    let mut world = wanted(sort, caller);
    world.apply(Op::Drive);
    assert!(matches!(world.machine.phase, Phase::Asking(_)));
    world
}

/// Lets the call be answered.
fn offered(sort: Sort, caller: NewCaller) -> World {
    let mut world = asking(sort, caller);
    world.apply(Op::Drive);
    world
}

fn held(sort: Sort, caller: NewCaller) -> World {
    let mut world = offered(sort, caller);
    world.apply(Op::Poll(0));
    assert!(world.machine.is_claimed() && world.guards.len() == 1);
    world
}

fn fail(world: &mut World, kind: StoreErrorKind) {
    world.apply(Op::Fail { kind, executed: true, late: true });
}

fn release(world: &mut World) {
    world.apply(Op::Release { n: 0, full: false });
    world.check();
}

fn after(world: &mut World, ms: u64) {
    world.apply(Op::Advance { ms, keeper: true, works: true });
    world.check();
}

fn is_free(world: &World) -> bool {
    matches!(world.machine.phase, Phase::Free)
}

fn is_offered(world: &World) -> bool {
    world.machine.is_offered()
}

#[test]
fn free_a_caller_comes() {
    let world = wanted(Sort::Mutex, USUAL);
    assert!(is_free(&world) && world.driver);
}

#[test]
fn asking_granted() {
    let world = offered(Sort::Mutex, USUAL);
    assert!(is_offered(&world) && world.waiting.values().all(|waiting| waiting.woken));
}

#[test]
fn asking_busy() {
    let mut world = asking(Sort::Mutex, USUAL);
    world.store.rival = true;
    world.apply(Op::Drive);
    assert!(is_free(&world));
    world.apply(Op::Drive);
    assert_eq!(world.machine.driver, Driver::Parked, "for a message, or a while");
    world.apply(Op::RivalReleases { heard: true });
    world.apply(Op::Drive);
    world.apply(Op::Drive);
    assert!(is_offered(&world));
}

#[test]
fn asking_a_try_is_told_busy() {
    let mut world = asking(Sort::Mutex, NewCaller { wait: Wait::No, ..USUAL });
    world.store.rival = true;
    world.apply(Op::Drive);
    world.apply(Op::Poll(0));
    assert!(world.waiting.is_empty() && world.guards.is_empty());
}

#[test]
fn asking_an_error_that_is_certain() {
    let mut world = asking(Sort::Mutex, USUAL);
    fail(&mut world, StoreErrorKind::Unreachable);
    assert!(is_free(&world) && world.store.gone.is_empty());
    assert!(world.machine.retry.not_before() > world.now);
}

#[test]
fn asking_an_error_of_unknown_outcome() {
    let mut world = asking(Sort::Mutex, USUAL);
    fail(&mut world, StoreErrorKind::Unanswered);
    assert!(is_free(&world) && world.store.ours.is_empty(), "withdrawn");
    assert_eq!(world.store.gone.len(), 1);
}

#[test]
fn asking_an_error_of_unknown_outcome_with_a_place_in_a_queue() {
    let mut world = asking(Sort::Fair, USUAL);
    fail(&mut world, StoreErrorKind::Unanswered);
    assert!(is_free(&world) && world.store.gone.is_empty());
    let request = world.machine.queued.as_ref().map(|queued| Arc::clone(&queued.request)).unwrap();
    after(&mut world, 20);
    world.apply(Op::Drive);
    let Phase::Asking(asked) = &world.machine.phase else { panic!() };
    assert!(Arc::ptr_eq(&asked.request, &request), "under the same owner");
    world.apply(Op::Drive);
    assert!(world.machine.held().is_some_and(|hold| hold.unanswered.is_some()));
}

#[test]
fn asking_not_replicated() {
    let mut world = asking(Sort::Mutex, NewCaller { replicas: 1, ..USUAL });
    fail(&mut world, StoreErrorKind::NotReplicated);
    assert!(matches!(world.machine.phase, Phase::Undoing(..)));
    world.apply(Op::Drive);
    world.apply(Op::Drive);
    assert!(is_free(&world) && world.store.ours.is_empty());
    assert!(world.machine.retry.is_set_back(world.now));
}

#[test]
fn offered_claimed() {
    let mut world = held(Sort::Mutex, USUAL);
    world.apply(Op::Drive);
    assert!(!is_offered(&world) && !world.driver);
}

#[test]
fn offered_not_claimed() {
    let mut world = wanted(Sort::Mutex, USUAL);
    (0..2).for_each(|_| world.apply(Op::Enqueue(USUAL)));
    (0..2).for_each(|_| world.apply(Op::Drive));
    let first = *world.waiting.keys().next().unwrap();
    after(&mut world, 20);
    assert!(is_offered(&world), "to the next");
    assert!(matches!(world.machine.waiters[&first].state, WaiterState::Unresponsive));
    let mut alone = offered(Sort::Mutex, USUAL);
    after(&mut alone, 20);
    assert!(matches!(alone.machine.phase, Phase::Ending { .. }), "to the store");
}

#[test]
fn offered_the_waiter_leaves() {
    let mut world = offered(Sort::Mutex, USUAL);
    world.apply(Op::Leave(0));
    assert!(matches!(world.machine.phase, Phase::Ending { .. }));
}

#[test]
fn unresponsive_polled() {
    let mut world = offered(Sort::Mutex, USUAL);
    after(&mut world, 20);
    world.apply(Op::Poll(0));
    assert!(world.machine.first_active().is_some());
}

#[test]
fn held_released_with_a_waiter() {
    let mut world = offered(Sort::Mutex, USUAL);
    world.apply(Op::Enqueue(USUAL));
    // A request for several waiters brings several tokens.
    world.apply(Op::Poll(0));
    release(&mut world);
    (0..2).for_each(|_| world.apply(Op::Drive));
    world.apply(Op::Poll(0));
    assert_eq!(world.guards.len(), 1);
    let mut many = wanted(Sort::Mutex, USUAL);
    (0..2).for_each(|_| many.apply(Op::Enqueue(USUAL)));
    (0..2).for_each(|_| many.apply(Op::Drive));
    many.apply(Op::Poll(0));
    let (hold, token) = (Arc::clone(&many.guards[0].pass.hold), many.guards[0].pass.token);
    release(&mut many);
    assert!(is_offered(&many) && many.machine.has(&hold), "handed off");
    many.apply(Op::Poll(0));
    assert!(many.guards[0].pass.handed_off && many.guards[0].pass.token > token);
}

#[test]
fn held_released_without_a_waiter() {
    let mut world = held(Sort::Mutex, USUAL);
    release(&mut world);
    assert!(matches!(world.machine.phase, Phase::Ending { .. }) && world.driver);
    world.apply(Op::Drive);
    assert!(matches!(world.machine.phase, Phase::Releasing(None)));
    world.apply(Op::Drive);
    assert!(is_free(&world) && world.store.ours.is_empty());
}

#[test]
fn releasing_taken_over() {
    let mut world = held(Sort::Mutex, USUAL);
    world.apply(Op::Enqueue(USUAL));
    release(&mut world);
    world.apply(Op::Drive);
    assert!(matches!(world.machine.phase, Phase::Releasing(Some(_))));
    world.apply(Op::Drive);
    assert!(is_offered(&world), "in the same step");
}

#[test]
fn releasing_an_error() {
    let mut world = held(Sort::Mutex, USUAL);
    release(&mut world);
    world.apply(Op::Drive);
    fail(&mut world, StoreErrorKind::Unreachable);
    assert!(matches!(world.machine.phase, Phase::Releasing(_)), "sent again");
}

#[test]
fn held_released_before_the_end_of_min_hold() {
    let mut world = held(Sort::Mutex, NewCaller { kept: true, ..USUAL });
    release(&mut world);
    world.apply(Op::Drive);
    assert!(matches!(world.machine.phase, Phase::Ending { told: true, .. }));
    world.apply(Op::Drive);
    assert_eq!(world.machine.driver, Driver::Parked);
    world.apply(Op::Advance { ms: 500, keeper: false, works: true });
    world.apply(Op::Drive);
    assert!(matches!(world.machine.phase, Phase::Releasing(_)));
}

#[test]
fn held_released_when_no_release_may_be_sent() {
    let mut world = held(Sort::Mutex, USUAL);
    world.apply(Op::Release { n: 0, full: true });
    assert!(is_free(&world) && !world.left.is_empty());
}

#[test]
fn held_entered_again() {
    let mut world = held(Sort::Mutex, USUAL);
    world.apply(Op::Enqueue(NewCaller { inside: Some(0), ..USUAL }));
    world.apply(Op::Reenter(0));
    assert!(world.guards.len() == 3 && world.waiting.is_empty());
    (0..2).for_each(|_| release(&mut world));
    assert!(world.machine.is_claimed());
}

#[test]
fn held_read_inside_a_write() {
    let mut world = held(Sort::Write, USUAL);
    world.apply(Op::Enqueue(NewCaller { inside: Some(0), reads: true, ..USUAL }));
    assert_eq!(world.guards.len(), 2);
    let number = world.guards[0].pass.number;
    let guest = Ask {
        kind: Kind::Read,
        terms: world.machine.waiters.values().next().map_or_else(usual, |waiter| waiter.ask.terms),
        inside: Few::one(number),
        guest: true,
        gated: None,
        part: None,
    };
    (0..2).for_each(|_| release(&mut world));
    let enqueued = world.machine.enqueue(guest, Cap { most: 1, ..CAP }, world.now);
    assert!(matches!(enqueued, Ok(Enqueued::Elsewhere)), "its host has gone");
}

fn usual() -> Terms {
    Terms {
        wait: Wait::Forever,
        lease: Lease::renewed(Duration::from_secs(1)),
        max_hold: None,
        min_hold: Duration::ZERO,
        replication: lock_core::Replication::NONE,
    }
}

#[test]
fn held_downgraded() {
    let mut world = held(Sort::Write, USUAL);
    world.apply(Op::Downgrade(0));
    assert_eq!(world.guards[0].pass.hold.kind(), Kind::Read);
}

#[test]
fn held_joined_by_a_reader() {
    let mut world = held(Sort::Readers, USUAL);
    world.apply(Op::Enqueue(USUAL));
    assert_eq!(world.guards.len(), 2);
    assert!(Arc::ptr_eq(&world.guards[0].pass.hold, &world.guards[1].pass.hold));
}

#[test]
fn held_by_readers_for_too_long() {
    let mut world = held(Sort::Readers, USUAL);
    world.now = world.now + Duration::from_millis(45);
    world.apply(Op::Enqueue(USUAL));
    assert_eq!(world.waiting.len(), 1, "others have their turn");
    after(&mut world, 20);
    assert!(world.machine.sealed && world.waiting.values().all(|waiting| waiting.woken));
    world.apply(Op::Poll(0));
    assert!(world.waiting.is_empty() && world.guards.len() == 1, "it asks in another lane");
}

#[test]
fn held_lost() {
    let mut world = held(Sort::Mutex, USUAL);
    world.apply(Op::Forget);
    assert!(is_free(&world) && world.guards[0].told);
    let mut late = held(Sort::Mutex, NewCaller { fixed: true, ..USUAL });
    after(&mut late, 1200);
    assert!(is_free(&late) && late.guards[0].told, "at its deadline");
}

#[test]
fn held_renewed() {
    let mut world = held(Sort::Mutex, USUAL);
    (0..10).for_each(|_| after(&mut world, 330));
    assert!(!world.guards[0].told && world.machine.is_claimed());
}

#[test]
fn held_max_hold_is_over() {
    let mut world = held(Sort::Mutex, NewCaller { limited: true, ..USUAL });
    after(&mut world, 300);
    assert!(world.guards[0].told && world.machine.is_claimed(), "the key stays taken");
    assert_eq!(world.machine.renews(&world.guards[0].pass.hold), None);
}

#[test]
fn queued_granted_directly() {
    let mut world = asking(Sort::Fair, USUAL);
    world.store.rival = true;
    (0..2).for_each(|_| world.apply(Op::Drive));
    assert!(world.machine.queued.as_ref().is_some_and(|queued| queued.is_noted));
    world.now = world.now + Duration::from_millis(1);
    world.apply(Op::RivalReleases { heard: true });
    assert!(is_offered(&world) && world.machine.queued.is_none());
}

/// The request was for one lease, and the next caller wants another.
#[test]
fn queued_granted_directly_to_another_caller() {
    let mut world = asking(Sort::Queued, NewCaller { fixed: true, ..USUAL });
    world.store.rival = true;
    (0..2).for_each(|_| world.apply(Op::Drive));
    assert!(world.machine.queued.as_ref().is_some_and(|queued| queued.is_noted));
    world.apply(Op::Enqueue(USUAL));
    world.apply(Op::Leave(0));
    world.now = world.now + Duration::from_millis(1);
    world.apply(Op::RivalReleases { heard: true });
    assert!(world.machine.held().is_none() && world.store.ours.is_empty(), "withdrawn");
    (0..3).for_each(|_| world.apply(Op::Drive));
    let held = world.machine.held().map(|hold| hold.lease);
    assert_eq!(held, Some(Lease::renewed(Duration::from_secs(8))), "asked anew");
}

/// In a store whose places say the same, one call looks for all waiters of the process.
#[test]
fn queued_looks_by_keeping_its_place() {
    let pause = |sort, listening| {
        let mut world = asking(sort, USUAL);
        (world.store.rival, world.listening) = (true, listening);
        (0..2).for_each(|_| world.apply(Op::Drive));
        assert!(world.machine.queued.as_ref().is_some_and(|queued| queued.is_noted));
        world.machine.retry.not_before().since(world.now)
    };
    let soon = Duration::from_millis(250);
    assert!(pause(Sort::Queued, true) > soon && pause(Sort::Queued, false) <= soon);
    assert!(pause(Sort::Fair, true) <= soon, "its messages may be lost");
}

/// Without messages, a waiter asks by itself at first. Then one call polls for all of the process,
/// but only for those that may be next: the others hear from an attempt how many come first.
#[test]
fn queued_polls_by_keeping_its_place() {
    let polls = |ahead| {
        let mut world = asking(Sort::Queued, USUAL);
        (world.store.rival, world.store.ahead, world.listening) = (true, ahead, false);
        (0..2).for_each(|_| world.apply(Op::Drive));
        for _ in 0..20 {
            let pause = world.machine.retry.not_before().since(world.now);
            if pause > Duration::from_millis(800) {
                break;
            }
            world.now = world.now + pause;
            (0..3).for_each(|_| world.apply(Op::Drive));
        }
        let kept = world.machine.queued.as_ref().map(|queued| queued.keep_at.since(world.now)).unwrap();
        (kept, world.machine.retry.not_before().since(world.now))
    };
    let quarter = Duration::from_millis(250);
    let (kept, asked) = polls(0);
    assert!(kept <= quarter && asked > quarter * 4, "{kept:?}, {asked:?}");
    let (kept, asked) = polls(10);
    assert!(kept > quarter * 4 && asked > quarter * 3 && asked <= quarter * 7, "{kept:?}, {asked:?}");
}

#[test]
fn a_place_that_is_kept_soon_stands_for_a_look() {
    let after = |fallback, kept| {
        super::asking::look_after(Duration::from_millis(fallback), Duration::from_millis(kept)).as_millis()
    };
    assert_eq!(after(5000, 5600), 6600, "in PostgreSQL");
    assert_eq!(after(5000, 2800), 5000);
    assert_eq!(after(5000, 6500), 5000);
    assert_eq!(after(10, 5600), 10);
}

/// A store that grants half of a lease directly leaves time for the first renewal.
#[test]
fn queued_granted_directly_is_renewed_later() {
    for (half, others) in [(true, false), (false, false), (true, true)] {
        let mut world = asking(Sort::Queued, USUAL);
        world.store.rival = true;
        (0..2).for_each(|_| world.apply(Op::Drive));
        if others {
            world.apply(Op::Enqueue(USUAL));
        }
        let lease = world.machine.queued.as_ref().map(|queued| queued.request.lease).unwrap();
        let direct = if half { lease / 2 } else { lease / 4 };
        world.machine.rules = super::tests::rules(Abilities { direct_lease: direct, ..super::tests::QUEUES });
        world.now = world.now + Duration::from_millis(1);
        world.apply(Op::RivalReleases { heard: true });
        let Phase::Held(held) = &world.machine.phase else { panic!("held") };
        assert_eq!(held.renewal > world.now, half && !others);
        assert!(held.renewal < world.now + direct / 2);
    }
}

#[test]
fn queued_without_waiters() {
    let mut world = asking(Sort::Fair, USUAL);
    world.store.rival = true;
    (0..2).for_each(|_| world.apply(Op::Drive));
    world.apply(Op::Leave(0));
    world.apply(Op::Drive);
    assert!(world.machine.is_idle() && world.store.gone.len() == 1, "withdrawn");
}

#[test]
fn gated_admitted() {
    let mut world = World::new(Sort::Permits);
    let gated = Some(world.now + Duration::from_millis(50));
    let ask = Ask { kind: Kind::Mutex, terms: usual(), inside: Few::new(), guest: false, gated, part: None };
    let enqueued = world.machine.enqueue(ask, Cap { most: 1, ..CAP }, world.now).unwrap();
    let Enqueued::Waiting(id) = enqueued else { panic!() };
    assert!(world.machine.poll_actions().is_empty(), "it stands in line");
    world.handle(Input::Admit(id));
    assert!(world.driver);
    after(&mut world, 50);
    assert!(world.machine.first_active().is_none(), "its turn is over, polled or not");
}

#[test]
fn any_the_driver_is_gone() {
    let mut world = asking(Sort::Mutex, USUAL);
    world.apply(Op::DriverGone);
    assert!(is_free(&world) && world.store.gone.len() == 1, "withdrawn");
    let mut world = held(Sort::Mutex, USUAL);
    world.apply(Op::DriverGone);
    assert!(world.machine.is_claimed());
    world.apply(Op::Enqueue(USUAL));
    release(&mut world);
    world.apply(Op::Drive);
    assert!(matches!(world.machine.phase, Phase::Releasing(Some(_))));
    world.apply(Op::DriverGone);
    assert!(is_free(&world) && world.store.gone.len() == 1, "what it would have taken is withdrawn");
}

#[test]
fn any_shut_down() {
    let mut world = offered(Sort::Mutex, USUAL);
    world.handle(Input::ShutDown);
    assert!(matches!(world.machine.phase, Phase::Ending { .. }));
    world.apply(Op::Poll(0));
    assert!(world.waiting.is_empty() && world.guards.is_empty());
}

#[test]
fn any_freed_by_force() {
    let mut world = held(Sort::Mutex, USUAL);
    world.apply(Op::FreeByForce);
    assert!(world.guards[0].told, "the store was asked");
    let mut asking = asking(Sort::Mutex, USUAL);
    asking.handle(Input::Freed);
    asking.apply(Op::Drive);
    asking.apply(Op::Poll(0));
    assert!(!asking.guards[0].told, "it came after that");
}

#[test]
fn what_is_looked_for_is_not_renewed_later() {
    let mut world = held(Sort::Mutex, USUAL);
    world.apply(Op::Advance { ms: 350, keeper: true, works: false });
    let due = world.machine.poll_timeout();
    world.handle(Input::Freed);
    assert_eq!(world.machine.poll_timeout(), due);
    let Phase::Held(held) = &world.machine.phase else { panic!("held") };
    assert_eq!(held.failures, 1);
}

#[test]
fn a_grant_without_a_token_is_withdrawn() {
    let mut world = asking(Sort::Mutex, USUAL);
    let Phase::Asking(Asked { request, .. }) = &world.machine.phase else { panic!("asking") };
    let tokens = request.items.iter().map(|_| TokenRange { first: 2, last: 1 }).collect();
    let answer = Ok(Acquired::Granted(Granted { tokens, moment: world.moment() }));
    let (sent, seen) = (world.now, world.seen());
    world.handle(Input::Acquired { answer, sent, seen });
    assert!(is_free(&world) && world.store.gone.len() == 1);
    assert_eq!(world.waiting.len(), 1, "it asks again");
}
