//! As `drops.rs`, for fair locks, readers and writers, locks of several keys, and permits. These
//! could also leave a place in a queue or an intent to write.

use crate::gated::scenes::{MS, SECOND, Scene, held, lost, no_leaks, once_more};
use lock_runtime::MultiKey;
use tokio::time::advance;

/// Two keys of different kinds.
fn pair() -> [MultiKey; 2] {
    [MultiKey::write("k"), MultiKey::fair("l")]
}

// ---- fair ---------------------------------------------------------------------------------------

#[test]
fn fair_acquire_with_a_fault() {
    no_leaks(30, &async |world| Scene::of(world.locks.fair("k").acquire()).faults(1).spurious(1));
}

/// The release grants the key to the waiter, which is dropped before the notice, after it, or when
/// it claims the key.
#[test]
fn fair_acquire_of_a_key_that_another_process_gives_back() {
    no_leaks(100, &async |world| {
        let back = held(world.rival.fair("k")).await;
        Scene::of(world.locks.fair("k").acquire()).while_it_may("the rival releases", back).spurious(1)
    });
}

#[test]
fn fair_acquire_behind_another_process_with_a_fault() {
    no_leaks(500, &async |world| {
        let back = held(world.rival.fair("k")).await;
        Scene::of(world.locks.fair("k").acquire())
            .while_it_may("the rival releases", back)
            .faults(1)
            .spurious(1)
    });
}

#[test]
fn fair_acquire_whose_wait_runs_out() {
    no_leaks(50, &async |world| {
        let held = world.rival.fair("k").acquire().await.unwrap();
        let acquire = world.locks.fair("k").wait(50 * MS).acquire();
        Scene::of(async move { (acquire.await, held) })
            .while_it_may("60 ms pass", advance(60 * MS))
            .spurious(1)
    });
}

#[test]
fn fair_release() {
    no_leaks(15, &async |world| {
        let guard = world.locks.fair("k").acquire().await.unwrap();
        Scene::of(guard.release()).faults(1).spurious(1)
    });
}

#[test]
fn fair_try() {
    no_leaks(100, &async |world| {
        let back = held(world.rival.fair("k")).await;
        Scene::of(world.locks.fair("k").try_acquire()).while_it_may("the rival releases", back).faults(1)
    });
}

// ---- readers and writers ------------------------------------------------------------------------

#[test]
fn read_with_a_fault() {
    no_leaks(30, &async |world| Scene::of(world.locks.read("k").acquire()).faults(1).spurious(1));
}

#[test]
fn read_behind_a_writer_of_another_process() {
    no_leaks(100, &async |world| {
        let back = held(world.rival.write("k")).await;
        Scene::of(world.locks.read("k").acquire()).while_it_may("the rival releases", back).spurious(1)
    });
}

#[test]
fn two_readers_of_one_process() {
    no_leaks(100, &async |world| {
        Scene::of(world.locks.read("k").acquire()).and(world.locks.read("k").acquire())
    });
}

/// A waiting writer has an intent, which keeps readers out. The intent goes with the writer.
#[test]
fn write_behind_a_reader_of_another_process_with_a_fault() {
    no_leaks(500, &async |world| {
        let back = held(world.rival.read("k")).await;
        Scene::of(world.locks.write("k").acquire())
            .while_it_may("the rival releases", back)
            .faults(1)
            .spurious(1)
    });
}

#[test]
fn write_behind_a_reader_whose_wait_runs_out() {
    no_leaks(50, &async |world| {
        let held = world.rival.read("k").acquire().await.unwrap();
        let acquire = world.locks.write("k").wait(50 * MS).acquire();
        Scene::of(async move { (acquire.await, held) })
            .while_it_may("60 ms pass", advance(60 * MS))
            .spurious(1)
    });
}

#[test]
fn write_behind_a_reader_of_its_own_process() {
    no_leaks(50, &async |world| {
        let back = held(world.locks.read("k")).await;
        Scene::of(world.locks.write("k").acquire()).while_it_may("the reader leaves", back)
    });
}

#[test]
fn read_behind_a_writer_of_its_own_process() {
    no_leaks(50, &async |world| {
        let back = held(world.locks.write("k")).await;
        Scene::of(world.locks.read("k").acquire()).while_it_may("the writer leaves", back)
    });
}

#[test]
fn downgrade() {
    no_leaks(15, &async |world| {
        let guard = world.locks.write("k").acquire().await.unwrap();
        Scene::of(guard.downgrade()).faults(1).spurious(1)
    });
}

#[test]
fn downgrade_of_a_lock_that_is_lost() {
    no_leaks(20, &async |world| {
        let guard = world.locks.write("k").acquire().await.unwrap();
        let locks = world.locks.clone();
        Scene::of(guard.downgrade()).while_it_may("the lock is lost", lost(locks)).spurious(1)
    });
}

#[test]
fn downgrade_that_is_overdue() {
    no_leaks(15, &async |world| {
        let guard = world.locks.write("k").acquire().await.unwrap();
        Scene::of(guard.downgrade()).while_it_may("3 s pass", advance(3 * SECOND)).spurious(1)
    });
}

#[test]
fn a_read_inside_a_write() {
    no_leaks(20, &async |world| {
        let locks = world.locks.clone();
        let outer = world.locks.write("k").acquire().await.unwrap();
        let nested = async move {
            let inner = outer.scope(locks.read("k").acquire()).await;
            once_more().await;
            drop(outer);
            once_more().await;
            inner
        };
        Scene::of(nested).faults(1).spurious(1)
    });
}

// ---- several keys -------------------------------------------------------------------------------

#[test]
fn several_with_a_fault() {
    no_leaks(30, &async |world| Scene::of(world.locks.multi(pair()).acquire()).faults(1).spurious(1));
}

#[test]
fn several_of_which_another_process_gives_one_back() {
    no_leaks(100, &async |world| {
        let back = held(world.rival.read("k")).await;
        Scene::of(world.locks.multi(pair()).acquire()).while_it_may("the rival releases", back).spurious(1)
    });
}

#[test]
fn several_behind_another_process_with_a_fault() {
    no_leaks(500, &async |world| {
        let back = held(world.rival.fair("l")).await;
        Scene::of(world.locks.multi(pair()).acquire())
            .while_it_may("the rival releases", back)
            .faults(1)
            .spurious(1)
    });
}

#[test]
fn release_of_several() {
    no_leaks(15, &async |world| {
        let guard = world.locks.multi(pair()).acquire().await.unwrap();
        Scene::of(guard.release()).faults(1).spurious(1)
    });
}

/// One key is already held outside, the other one is taken.
#[test]
fn several_inside_one_of_them() {
    no_leaks(30, &async |world| {
        let locks = world.locks.clone();
        let outer = world.locks.mutex("l").acquire().await.unwrap();
        let nested = async move {
            let inner = outer.scope(locks.multi(["k", "l"]).acquire()).await;
            once_more().await;
            (inner, outer)
        };
        Scene::of(nested).faults(1).spurious(1)
    });
}

// ---- permits ------------------------------------------------------------------------------------

/// A caller that was served is not polled, and perhaps dropped, while others wait in the next line.
#[test]
fn permits_of_a_line_and_of_the_next() {
    no_leaks(500, &async |world| {
        // The rival's calls do not stop at the gate: only the line is tested here.
        let permits = world.rival.semaphore("s").wait_forever();
        permits.try_set_permits(3).await.unwrap();
        let acquire = move || {
            let permits = permits.clone();
            async move { drop(permits.acquire().await.expect("nothing is wrong")) }
        };
        let twice = {
            let acquire = acquire.clone();
            async move {
                acquire().await;
                acquire().await;
            }
        };
        Scene::of(twice).and(acquire()).and(acquire())
    });
}
