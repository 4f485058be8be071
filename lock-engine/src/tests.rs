//! Interleavings that cannot be produced from outside.

use std::sync::Arc;
use std::time::Duration;

use lock_core::Replication;
use tokio::runtime::Handle;

use super::*;
use crate::admission::Admission;
use crate::metrics::Label;
use crate::request::Request;
use crate::terms::{Lease, Terms, Wait};

/// Starts an engine on a new memory store.
pub(crate) fn engine() -> Arc<Engine> {
    let store = lock_store_memory::MemoryStore::new("");
    Engine::start(EngineSettings::default(), Clock::tokio(), store, Handle::current())
}

/// Returns the terms of a lock without settings.
pub(crate) fn terms(wait: Wait) -> Terms {
    let lease = Lease::renewed(EngineSettings::default().lease);
    Terms { wait, lease, max_hold: None, min_hold: Duration::ZERO, replication: Replication::NONE }
}

/// Makes a request for the mutex of `key`, as a manager does.
pub(crate) fn mutex(engine: &Arc<Engine>, key: &str) -> Request {
    Request {
        engine: Arc::clone(engine),
        key: LockKey::new(key).unwrap(),
        spec: Spec::one(Kind::Mutex),
        terms: terms(Wait::For(engine.settings.default_wait)),
        label: Label::Borrowed(""),
        max_waiters: usize::MAX,
        asked: None,
    }
}

/// Acquires the request's locks.
pub(crate) async fn acquire(request: Request) -> Admission {
    match crate::acquire::acquire(request).await {
        Ok(admission) => admission,
        Err((key, failure)) => panic!("{key}: {failure:?}"),
    }
}

/// Returns the scope of code that runs inside `admission`.
pub(crate) fn inside(admission: &Admission) -> Scope {
    Scope::current().with(Arc::clone(admission.grant()))
}

#[tokio::test(start_paused = true)]
async fn a_body_keeps_no_driver_that_its_wait_needed() {
    let clock = Clock::tokio();
    let store = lock_store_memory::MemoryStore::new("");
    let start = || {
        Engine::start(
            EngineSettings::default(),
            clock,
            Arc::clone(&store) as Arc<dyn LockStore>,
            Handle::current(),
        )
    };
    let (engine, rival) = (start(), start());
    let held = acquire(mutex(&rival, "k")).await;
    let waiter = tokio::spawn(acquire(mutex(&engine, "k")));
    tokio::time::sleep(Duration::from_millis(50)).await;
    held.release().await.unwrap();
    let guard = waiter.await.unwrap();
    tokio::time::sleep(Duration::from_millis(50)).await;
    // The subscription ends with it.
    assert_eq!(engine.tasks.len(), 0);
    let next = tokio::spawn(acquire(mutex(&engine, "k")));
    tokio::time::sleep(Duration::from_millis(50)).await;
    drop(guard);
    drop(next.await.unwrap());
}

#[tokio::test(start_paused = true)]
async fn a_late_idle_effect_does_not_take_the_sweep_of_a_new_offer() {
    let engine = engine();
    let name = LockKey::new("k").unwrap();
    // Thread A: a step that leaves the machine idle, stopped between unlocking and its actions.
    let make = || engine.make_lane(&name, LaneKind::Mutex, &Spec::one(Kind::Mutex));
    let lane = engine.registry.get(&name, LaneKind::Mutex, make);
    assert!(lock(&lane.state).machine.is_idle());
    // Thread B: a caller that is not polled again gets an offer, and its timer is set.
    let held = acquire(mutex(&engine, "k")).await;
    let forever = Request { terms: terms(Wait::Forever), ..mutex(&engine, "k") };
    let mut stuck = Box::pin(acquire(forever));
    let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
    assert!(stuck.as_mut().poll(&mut cx).is_pending());
    drop(held);
    tokio::time::sleep(Duration::from_millis(1)).await;
    // Thread A goes on.
    engine.registry.remove_idle(&lane);
    let soon = Request { terms: terms(Wait::For(Duration::from_secs(1))), ..mutex(&engine, "k") };
    drop(acquire(soon).await);
}
