//! Tests of databases whose clocks are stepped. Each starts its own server. Linux only.

use std::time::Duration;

use lock_runtime::LockError;
use tokio::time::{Instant, timeout};

use crate::database_server::{LockServer, connect, url};
use crate::{DatabaseServer, Helper, Offset, ServerClock};

const LEASE: Duration = Duration::from_secs(3);
const SLACK: Duration = Duration::from_secs(20);
const HOUR: Duration = Duration::from_secs(3600);

/// Then leases end early, and a second holder gets in. The first one is told before its own lease
/// is over, and its token is smaller.
pub async fn a_step_forward_ends_leases_early_and_tells_the_holder_within_its_lease<P: LockServer>() {
    let clock = ServerClock::new(Offset::NONE).unwrap();
    let server = DatabaseServer::<P>::start_with_clock(&clock);
    let (one, other) = (connect(&server, LEASE).await, connect(&server, LEASE).await);
    let first = one.mutex("k").acquire().await.unwrap();
    let waiter = tokio::spawn(other.mutex("k").wait(SLACK).acquire());
    tokio::time::sleep(LEASE).await;
    clock.set(Offset::Ahead(HOUR)).unwrap();
    let stepped = Instant::now();
    let second = waiter.await.unwrap().unwrap();
    assert!(second.fencing_token() > first.fencing_token());
    first.lost().await;
    assert!(stepped.elapsed() < LEASE + SLACK, "{:?}", stepped.elapsed());
    assert!(matches!(first.release().await, Err(LockError::Lost { .. })));
    // From then on there is one, through steps back too.
    for offset in [Offset::Ahead(HOUR), Offset::NONE, Offset::Behind(HOUR)] {
        clock.set(offset).unwrap();
        let busy = one.mutex("k").wait(LEASE * 3 / 2).acquire().await.unwrap_err();
        assert!(busy.is_busy(), "{offset:?}: {busy:?}");
        assert!(!second.is_lost(), "{offset:?}: {second:?}");
    }
    let token = second.fencing_token();
    second.release().await.unwrap();
    let third = timeout(SLACK, one.mutex("k").wait(SLACK).acquire()).await.unwrap().unwrap();
    assert!(third.fencing_token() > token, "although the clock is behind");
    third.release().await.unwrap();
    P::assert_nothing_is_left(&server, SLACK).await;
}

/// A living holder releases as always. The lock of a dead one ends by the clock: by the step later.
/// An operator can free it.
pub async fn a_step_back_keeps_only_the_locks_of_the_dead<P: LockServer>(holder: &str) {
    let clock = ServerClock::new(Offset::NONE).unwrap();
    let server = DatabaseServer::<P>::start_with_clock(&clock);
    let (one, other) = (connect(&server, LEASE).await, connect(&server, LEASE).await);
    let living = one.mutex("living").acquire().await.unwrap();
    let mut holder = Helper::spawn(holder, [&*url(&server), "lease=2000"]);
    assert_eq!(holder.line(SLACK), "ready");
    assert!(holder.ask("acquire dead").starts_with("acquired"));
    holder.kill();
    let waiter = tokio::spawn(other.mutex("living").wait(SLACK * 2).acquire());
    clock.set(Offset::Behind(HOUR)).unwrap();

    tokio::time::sleep(LEASE * 3 / 2).await;
    assert!(!living.is_lost() && !waiter.is_finished(), "{living:?}");
    let token = living.fencing_token();
    living.release().await.unwrap();
    let next = timeout(SLACK, waiter).await.unwrap().unwrap().unwrap();
    assert!(next.fencing_token() > token);
    next.release().await.unwrap();
    // New keys are taken and freed as always.
    let fresh = one.mutex("fresh").acquire().await.unwrap();
    fresh.release().await.unwrap();

    let busy = other.mutex("dead").wait(LEASE).acquire().await.unwrap_err();
    assert!(busy.is_busy(), "{busy:?}");
    assert!(other.status("dead").await.unwrap().remaining.unwrap() > HOUR - SLACK);
    assert!(other.force_release("dead").await.unwrap());
    other.mutex("dead").acquire().await.unwrap().release().await.unwrap();
    P::assert_nothing_is_left(&server, SLACK).await;
}
