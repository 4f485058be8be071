//! Waiting for a condition, instead of sleeping for a fixed time.

use std::time::Duration;

const PERIOD: Duration = Duration::from_millis(5);

/// Returns as soon as `condition` is true. Fails the test when that takes longer than `within`.
///
/// Uses tokio's clock, so it costs nothing under paused time.
///
/// # Panics
///
/// When the condition is still false after `within`.
#[track_caller]
pub fn eventually<C: AsyncFnMut() -> bool>(condition: C, within: Duration) -> impl Future<Output = ()> {
    let caller = std::panic::Location::caller();
    async move {
        let mut condition = condition;
        let deadline = tokio::time::Instant::now() + within;
        while !condition().await {
            assert!(tokio::time::Instant::now() < deadline, "{caller}: not true within {within:?}");
            tokio::time::sleep(PERIOD).await;
        }
    }
}

/// Polls `future` once and drops it, whether that completes it or not.
pub async fn poll_once_and_drop<F: Future>(future: F) {
    use std::task::Poll;

    let mut future = Box::pin(future);
    std::future::poll_fn(|cx| {
        let _ = future.as_mut().poll(cx);
        Poll::Ready(())
    })
    .await;
}

/// Polls `future` once and returns it. By then it has its place in every queue, and it makes no
/// progress until it is polled again.
///
/// # Panics
///
/// When the first poll completes it.
pub async fn first_poll<F: Future>(future: F) -> std::pin::Pin<Box<F>> {
    use std::task::Poll;

    let mut future = Box::pin(future);
    let pending = std::future::poll_fn(|cx| Poll::Ready(future.as_mut().poll(cx).is_pending())).await;
    assert!(pending, "completed at the first poll");
    future
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    #[should_panic(expected = "not true within 3600s")]
    async fn paused_time_makes_waiting_free() {
        eventually(async || false, Duration::from_secs(3600)).await;
    }
}
