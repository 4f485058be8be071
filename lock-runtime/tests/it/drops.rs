//! Every public future is dropped at every await, while the store's calls and answers proceed in
//! every order: nothing is left behind (P5). Paused time. Kinds other than the mutex are in
//! `drops_kinds.rs`.

use std::mem::ManuallyDrop;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Waker};

use crate::gated::Bug;
use crate::gated::leaks::Leak;
use crate::gated::polled::{runtime, settle};
use crate::gated::scenes::{
    LEASE, MS, SECOND, Scene, World, held_by_rival, leaks_of, lost, no_leaks, once_more, world,
};
use lock_core::store::LockStore;
use lock_runtime::LockGuard;
use tokio::time::advance;

// ---- futures ------------------------------------------------------------------------------------

#[test]
fn acquire_of_a_free_key() {
    no_leaks(8, &async |world| Scene::of(world.locks.mutex("k").acquire()).spurious(2));
}

#[test]
fn acquire_with_a_fault() {
    no_leaks(30, &async |world| Scene::of(world.locks.mutex("k").acquire()).faults(1).spurious(1));
}

#[test]
fn acquire_of_a_key_that_another_process_gives_back() {
    no_leaks(100, &async |world| {
        let back = held_by_rival(world).await;
        Scene::of(world.locks.mutex("k").acquire()).while_it_may("the rival releases", back).spurious(1)
    });
}

#[test]
fn acquire_behind_another_process_with_a_fault() {
    no_leaks(3000, &async |world| {
        let back = held_by_rival(world).await;
        Scene::of(world.locks.mutex("k").acquire())
            .while_it_may("the rival releases", back)
            .faults(1)
            .spurious(1)
    });
}

#[test]
fn acquire_whose_wait_runs_out() {
    no_leaks(1000, &async |world| {
        let back = held_by_rival(world).await;
        Scene::of(world.locks.mutex("k").wait(50 * MS).acquire())
            .while_it_may("the rival releases", back)
            .while_it_may("60 ms pass", advance(60 * MS))
    });
}

#[test]
fn acquire_whose_call_is_overdue() {
    no_leaks(100, &async |world| {
        Scene::of(world.locks.mutex("k").acquire()).while_it_may("3 s pass", advance(3 * SECOND)).spurious(1)
    });
}

#[test]
fn two_acquires_of_one_process() {
    no_leaks(150, &async |world| {
        Scene::of(world.locks.mutex("k").acquire()).and(world.locks.mutex("k").acquire())
    });
}

#[test]
fn try_acquire() {
    no_leaks(400, &async |world| {
        let back = held_by_rival(world).await;
        Scene::of(world.locks.mutex("k").try_acquire())
            .while_it_may("the rival releases", back)
            .faults(1)
            .spurious(1)
    });
}

#[test]
fn release() {
    no_leaks(15, &async |world| {
        let guard = world.locks.mutex("k").acquire().await.unwrap();
        Scene::of(guard.release()).faults(1).spurious(1)
    });
}

#[test]
fn release_that_is_overdue() {
    no_leaks(15, &async |world| {
        let guard = world.locks.mutex("k").acquire().await.unwrap();
        Scene::of(guard.release()).while_it_may("3 s pass", advance(3 * SECOND)).spurious(1)
    });
}

#[test]
fn release_with_somebody_in_line() {
    no_leaks(250, &async |world| {
        let guard = world.locks.mutex("k").lease(LEASE).acquire().await.unwrap();
        Scene::of(guard.release()).and(world.locks.mutex("k").acquire()).faults(1)
    });
}

#[test]
fn extend() {
    no_leaks(50, &async |world| {
        let guard = world.locks.mutex("k").lease(LEASE).acquire().await.unwrap();
        let extended = async move {
            let result = guard.extend(2 * LEASE).await;
            (guard, result)
        };
        Scene::of(extended).faults(1).spurious(1)
    });
}

#[test]
fn extend_of_a_lock_that_is_lost() {
    no_leaks(60, &async |world| {
        let guard = world.locks.mutex("k").lease(LEASE).acquire().await.unwrap();
        let locks = world.locks.clone();
        Scene::of(async move { (guard.extend(2 * LEASE).await, guard) })
            .while_it_may("the lock is lost", lost(locks))
            .spurious(1)
    });
}

#[test]
fn with() {
    no_leaks(50, &async |world| {
        let body = async |_| once_more().await;
        Scene::of(world.locks.mutex("k").with(body)).faults(1).spurious(1)
    });
}

#[test]
fn with_a_lock_that_is_lost() {
    no_leaks(50, &async |world| {
        let locks = world.locks.clone();
        let body = async |_| once_more().await;
        Scene::of(world.locks.mutex("k").with(body)).while_it_may("the lock is lost", lost(locks)).spurious(1)
    });
}

/// The inner call re-enters, and extends the outer lock's fixed lease.
#[test]
fn reentry() {
    no_leaks(50, &async |world| {
        let locks = world.locks.clone();
        let outer = world.locks.mutex("k").lease(LEASE).acquire().await.unwrap();
        let nested = async move {
            let inner = outer.scope(locks.mutex("k").lease(2 * LEASE).acquire()).await;
            let again = outer.reenter();
            once_more().await;
            (outer, inner, again)
        };
        Scene::of(nested).faults(1).spurious(1)
    });
}

#[test]
fn reentry_of_a_lock_that_is_lost() {
    no_leaks(500, &async |world| {
        let locks = world.locks.clone();
        let outer = world.locks.mutex("k").lease(LEASE).acquire().await.unwrap();
        let nested = {
            let locks = locks.clone();
            async move { (outer.scope(locks.mutex("k").lease(2 * LEASE).acquire()).await, outer) }
        };
        Scene::of(nested).while_it_may("the lock is lost", lost(locks))
    });
}

#[test]
fn force_release() {
    no_leaks(600, &async |world| {
        let guard = world.locks.mutex("k").acquire().await.unwrap();
        let locks = world.locks.clone();
        Scene::of(async move { locks.force_release("k").await })
            .while_it_may("the holder releases", async move { drop(guard) })
            .faults(1)
            .spurious(1)
    });
}

#[test]
fn force_release_beside_an_acquire() {
    no_leaks(1000, &async |world| {
        let (locks, acquire) = (world.locks.clone(), world.locks.mutex("k").acquire());
        let another_call = async move { drop(tokio::spawn(async { drop(acquire.await) })) };
        Scene::of(async move { locks.force_release("k").await })
            .while_it_may("another call begins", another_call)
    });
}

#[test]
fn lost_of_a_lock() {
    no_leaks(25, &async |world| {
        let guard = world.locks.mutex("k").lease(LEASE).acquire().await.unwrap();
        let locks = world.locks.clone();
        Scene::of(async move { (guard.lost().await, guard).1 })
            .while_it_may("the lock is lost", lost(locks))
            .spurious(1)
    });
}

#[test]
fn shutdown() {
    no_leaks(100, &async |world| {
        let guard = world.locks.mutex("k").acquire().await.unwrap();
        let locks = world.locks.clone();
        Scene::of(async move { locks.shutdown(SECOND).await })
            .while_it_may("the holder releases", async move { drop(guard) })
            .while_it_may("2 s pass", advance(2 * SECOND))
            .spurious(1)
    });
}

#[test]
fn status() {
    no_leaks(10, &async |world| {
        let locks = world.locks.clone();
        Scene::of(async move { locks.status("k").await }).faults(1).spurious(1)
    });
}

#[cfg(feature = "macros")]
mod attribute {
    use super::*;
    use lock_runtime::{LockError, LockManager, distributed_lock};

    #[distributed_lock(key = "<key>", manager = locks)]
    async fn job(locks: LockManager, key: &'static str) -> Result<(), LockError> {
        inner(locks, key).await?;
        once_more().await;
        Ok(())
    }

    #[distributed_lock(key = "<key>", manager = locks)]
    async fn inner(locks: LockManager, key: &'static str) -> Result<(), LockError> {
        once_more().await;
        Ok(())
    }

    #[test]
    fn annotated_functions() {
        no_leaks(50, &async |world| Scene::of(job(world.locks.clone(), "k")).faults(1).spurious(1));
    }

    #[test]
    fn an_annotated_function_in_line() {
        no_leaks(100, &async |world| {
            let back = held_by_rival(world).await;
            Scene::of(job(world.locks.clone(), "k")).while_it_may("the rival releases", back).spurious(1)
        });
    }
}

// ---- the checker --------------------------------------------------------------------------------

/// Returns the leaks that are found after `culprit` has left something behind on purpose.
fn found<T>(culprit: impl AsyncFnOnce(&World) -> T) -> Vec<Leak> {
    runtime().block_on(async {
        let world = world().await;
        let _left = culprit(&world).await;
        leaks_of(world).await
    })
}

#[test]
fn nothing_is_found_where_nothing_is_left() {
    assert_eq!(found(async |world| world.locks.mutex("k").acquire().await.map(drop)), []);
}

#[test]
fn a_forgotten_guard_is_found() {
    let leaks = found(async |world| ManuallyDrop::new(world.locks.mutex("k").acquire().await.unwrap()));
    assert_eq!(leaks, [Leak::Held, Leak::Entry, Leak::Timer, Leak::Refused]);
}

#[test]
fn a_forgotten_waiter_is_found() {
    let leaks = found(async |world| {
        let held = world.rival.mutex("k").acquire().await.unwrap();
        let mut waiter = world.locks.mutex("k").wait_forever().acquire();
        assert!(Pin::new(&mut waiter).poll(&mut Context::from_waker(Waker::noop())).is_pending());
        settle().await; // until it listens
        drop(held);
        ManuallyDrop::new(waiter)
    });
    assert_eq!(leaks, [Leak::Waiter, Leak::Entry]);
}

#[test]
fn a_forgotten_subscription_is_found() {
    use lock_core::store::{AcquireRequest, Item, Kind};
    let leaks = found(async |world| {
        let key = lock_runtime::LockKey::new("k").unwrap();
        let item = Item { key, kind: Kind::Mutex, owner: lock_runtime::OwnerId::new("o") };
        let request = Arc::new(AcquireRequest::new(vec![item], SECOND, SECOND));
        world.store.watch(request).await.unwrap()
    });
    assert_eq!(leaks, [Leak::Subscription]);
}

#[test]
fn a_task_that_goes_on_is_found() {
    let leaks = found(async |_| tokio::spawn(std::future::pending::<()>()));
    assert_eq!(leaks, [Leak::Task]);
}

#[test]
fn a_release_that_is_never_carried_out_is_found() {
    let leaks = found(async |world| {
        let guard: LockGuard = world.locks.mutex("k").acquire().await.unwrap();
        world.store.put_in(Bug::LosesReleases);
        guard.release().await
    });
    assert_eq!(leaks, [Leak::Held, Leak::Refused]);
}
