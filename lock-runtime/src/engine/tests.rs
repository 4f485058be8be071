//! Interleavings that cannot be made from outside.

use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Handle;

use super::machine::Effects;
use super::*;

fn engine() -> (Arc<Engine>, crate::LockManager) {
    let clock = Clock::tokio();
    let store = crate::store::memory::MemoryStore::new("");
    let engine = Engine::start(EngineSettings::default(), clock, store, Handle::current());
    (Arc::clone(&engine), crate::LockManager::on(engine))
}

#[tokio::test(start_paused = true)]
async fn a_body_keeps_no_subscription_that_its_wait_needed() {
    let clock = Clock::tokio();
    let store = crate::store::memory::MemoryStore::new("");
    let start = || {
        Engine::start(
            EngineSettings::default(),
            clock,
            Arc::clone(&store) as Arc<dyn LockStore>,
            Handle::current(),
        )
    };
    let (engine, rival) = (start(), crate::LockManager::on(start()));
    let locks = crate::LockManager::on(Arc::clone(&engine));
    let held = rival.mutex("k").acquire().await.unwrap();
    let waiter = tokio::spawn(async move { locks.mutex("k").acquire().await });
    tokio::time::sleep(Duration::from_millis(50)).await;
    held.release().await.unwrap();
    let guard = waiter.await.unwrap().unwrap();
    let key = engine.registry.find(&LockKey::new("k").unwrap(), Lane::Mutex).unwrap();
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert!(lock(&key.watch).is_none());
    drop(guard);
}

#[tokio::test(start_paused = true)]
async fn a_late_idle_effect_does_not_take_the_sweep_of_a_new_offer() {
    let (engine, locks) = engine();
    let name = LockKey::new("k").unwrap();
    // Thread A: an act that leaves the machine idle, stopped between unlocking and what follows.
    let make = || engine.make_key(&name, Lane::Mutex, &Spec::one(Kind::Mutex));
    let key = engine.registry.get(&name, Lane::Mutex, make);
    assert!(lock(&key.machine).is_idle());
    // Thread B: a caller that is not polled again gets an offer, its sweep is set.
    let held = locks.mutex("k").acquire().await.unwrap();
    let mut stuck = Box::pin(locks.mutex("k").wait_forever().acquire());
    let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
    assert!(stuck.as_mut().poll(&mut cx).is_pending());
    drop(held);
    tokio::time::sleep(Duration::from_millis(1)).await;
    // Thread A goes on.
    engine.apply(&key, &mut Effects::default(), true, Start::InATask, engine.clock.now());
    let next = locks.mutex("k").wait(Duration::from_secs(1)).acquire().await;
    assert!(next.is_ok(), "{next:?}");
}

#[tokio::test(start_paused = true)]
async fn a_late_deadline_does_not_take_the_place_of_a_renewal() {
    let (engine, locks) = engine();
    let outer = locks.mutex("k").lease(Duration::from_secs(10)).acquire().await.unwrap();
    let key = engine.registry.find(&LockKey::new("k").unwrap(), Lane::Mutex).unwrap();
    let hold = lock(&key.machine).hold().cloned().unwrap();
    // Thread A, `watch_again` of the driver: is stopped before the machine's mutex. Thread B: a renewed call inside.
    let inner = outer.scope(locks.mutex("k").acquire()).await.unwrap();
    assert!(hold.is_renewing());
    // Thread A goes on.
    engine.watch_again(&hold);
    tokio::time::sleep(Duration::from_secs(20)).await;
    assert!(!inner.is_lost(), "the watchdog did not renew");
}
