//! A view reports on the guard that it was made from, not on others that share the hold.

use std::time::Duration;

use lock_runtime::testing::{lose, memory_manager};
use lock_runtime::{HeldLock, LockGuard};
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

const SECOND: Duration = Duration::from_secs(1);

/// The first guard is released normally; then the other one loses the hold.
async fn speaks_of_its_own_guard(first: LockGuard, other: LockGuard, lose: impl AsyncFnOnce()) {
    let (view, token) = (first.view(), first.cancellation_token());
    let told = tokio::spawn({
        let view = view.clone();
        async move { view.lost().await }
    });
    sleep(SECOND / 10).await;
    assert!(view.is_held());
    first.release().await.unwrap();
    assert!(!view.is_held(), "held, although its guard was released");
    assert_eq!(view.remaining(), Duration::ZERO);
    assert!(other.view().is_held() && !other.is_lost());
    lose().await;
    assert!(other.is_lost() && other.view().is_lost());
    is_not_lost(&view, &token).await;
    assert!(!told.is_finished(), "told of somebody else's loss");
    told.abort();
    drop(other);
    is_not_lost(&view, &token).await;
}

async fn is_not_lost(view: &HeldLock, token: &CancellationToken) {
    assert!(!view.is_lost(), "lost, although it was released in good order");
    assert!(!token.is_cancelled() && !view.cancellation_token().is_cancelled());
    assert!(timeout(60 * SECOND, view.lost()).await.is_err());
}

/// The guard notices the loss itself, before the manager does.
async fn tells_of_a_loss_that_its_own_guard_notices(first: LockGuard, other: LockGuard) {
    let (view, token) = (first.view(), first.cancellation_token());
    // The timekeeper does not run in between.
    tokio::time::advance(60 * SECOND).await;
    assert!(!token.is_cancelled(), "it was noticed by somebody else");
    assert!(first.release().await.is_err());
    assert!(view.is_lost() && token.is_cancelled(), "it is lost, and its token says nothing");
    drop(other);
}

#[tokio::test(start_paused = true)]
async fn of_an_inner_call_that_notices_the_loss() {
    let locks = memory_manager();
    let outer = locks.mutex("k").lease(SECOND).acquire().await.unwrap();
    let inner = outer.reenter().unwrap();
    tells_of_a_loss_that_its_own_guard_notices(inner, outer).await;
}

#[tokio::test(start_paused = true)]
async fn of_a_reader_that_notices_the_loss() {
    let locks = memory_manager();
    let first = locks.read("k").acquire().await.unwrap();
    let other = locks.read("k").acquire().await.unwrap();
    tells_of_a_loss_that_its_own_guard_notices(first, other).await;
}

/// `downgrade` returns the same guard, so its view stays valid.
#[tokio::test(start_paused = true)]
async fn of_a_writer_that_became_a_reader() {
    let locks = memory_manager();
    let writer = locks.write("k").acquire().await.unwrap();
    let (view, token) = (writer.view(), writer.cancellation_token());
    let reader = writer.downgrade().await.unwrap();
    assert!(view.is_held() && !view.is_lost());
    assert!(lose(&locks, "k"));
    assert!(view.is_lost() && token.is_cancelled());
    drop(reader);
}

#[tokio::test(start_paused = true)]
async fn of_a_reader_that_has_left() {
    let locks = memory_manager();
    let first = locks.read("k").acquire().await.unwrap();
    let other = locks.read("k").acquire().await.unwrap();
    assert_eq!(first.fencing_token(), other.fencing_token());
    speaks_of_its_own_guard(first, other, async || assert!(lose(&locks, "k"))).await;
}

#[tokio::test(start_paused = true)]
async fn of_an_inner_call_that_has_ended() {
    let locks = memory_manager();
    let outer = locks.mutex("k").acquire().await.unwrap();
    let inner = outer.scope(locks.mutex("k").acquire()).await.unwrap();
    speaks_of_its_own_guard(inner, outer, async || assert!(lose(&locks, "k"))).await;
}

#[tokio::test(start_paused = true)]
async fn of_an_outer_call_that_has_ended() {
    let locks = memory_manager();
    let outer = locks.mutex("k").acquire().await.unwrap();
    let inner = outer.reenter().unwrap();
    speaks_of_its_own_guard(outer, inner, async || assert!(lose(&locks, "k"))).await;
}

/// Lost by `max_hold`: that of the outermost call, which applies even if its own guard is gone.
#[tokio::test(start_paused = true)]
async fn of_an_outer_call_with_a_limit() {
    let locks = memory_manager();
    let outer = locks.mutex("k").max_hold(5 * SECOND).acquire().await.unwrap();
    let inner = outer.reenter().unwrap();
    let told = inner.cancellation_token();
    speaks_of_its_own_guard(outer, inner, async || {
        sleep(5 * SECOND).await;
        assert!(told.is_cancelled());
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn all_who_share_a_hold_are_told_of_its_loss() {
    let locks = memory_manager();
    let first = locks.read("k").acquire().await.unwrap();
    let second = locks.read("k").acquire().await.unwrap();
    let inner = second.reenter().unwrap();
    let tokens = [&first, &second, &inner].map(LockGuard::cancellation_token);
    assert!(lose(&locks, "k"));
    assert!(tokens.iter().all(CancellationToken::is_cancelled));
}
