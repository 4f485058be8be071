//! [`join`]: runs several futures concurrently in one task.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::Poll;

enum Part<'a, T> {
    Running(Pin<Box<dyn Future<Output = T> + Send + 'a>>),
    Done(T),
}

/// Returns the results of all futures, in their order.
pub(super) async fn join<'a, T: Send + 'a>(
    futures: impl IntoIterator<Item = impl Future<Output = T> + Send + 'a>,
) -> Vec<T> {
    let mut parts: Vec<_> =
        futures.into_iter().map(|future| Part::Running(Box::pin(future) as Pin<Box<_>>)).collect();
    poll_fn(|cx| {
        let mut pending = false;
        for part in &mut parts {
            if let Part::Running(future) = part {
                match future.as_mut().poll(cx) {
                    Poll::Ready(done) => *part = Part::Done(done),
                    Poll::Pending => pending = true,
                }
            }
        }
        if pending { Poll::Pending } else { Poll::Ready(()) }
    })
    .await;
    parts
        .into_iter()
        .filter_map(|part| match part {
            Part::Done(done) => Some(done),
            Part::Running(_) => None,
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn results_are_in_the_order_of_the_futures() {
        let wait = |millis| async move {
            tokio::time::sleep(Duration::from_millis(millis)).await;
            millis
        };
        let begun = tokio::time::Instant::now();
        assert_eq!(join([30, 10, 20].map(wait)).await, [30, 10, 20]);
        assert!(begun.elapsed() < Duration::from_millis(40), "side by side");
        assert!(join(Vec::<std::future::Ready<()>>::new()).await.is_empty());
    }
}
