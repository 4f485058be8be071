//! Tests of the spans of locks.

use crate::captured::captured;
use crate::some_locks::some_locks;
use tracing_subscriber::filter::LevelFilter;

#[test]
fn spans_have_key_wait_token_and_outcome() {
    let text = captured(LevelFilter::DEBUG, || {
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
        runtime.block_on(some_locks());
    });
    let line = |what: &str| {
        let found = text.lines().find(|line| line.contains("lock_acquire{") && line.contains(what));
        found.unwrap_or_else(|| panic!("no {what} in {text}")).to_owned()
    };
    let granted = line("outcome=\"granted\"");
    assert!(
        granted.contains("key=order:17") && granted.contains("wait=") && granted.contains("token="),
        "{granted}"
    );
    assert!(line("outcome=\"timed_out\"").contains("wait=For(1ms)"));
    line("outcome=\"handed_off\"");
    assert!(text.lines().any(|line| line.contains("WARN") && line.contains("lock lost")), "{text}");
}

/// The span of a request gets those fields of the lock that it has declared.
#[cfg(feature = "layer")]
#[test]
fn the_span_of_a_request_has_its_lock() {
    use std::convert::Infallible;
    use std::time::Duration;

    use http::{Request, Response};
    use http_body_util::Empty;
    use lock_runtime::layer::{LockLayer, path_segment};
    use lock_runtime::testing::memory_manager;
    use tower::{Layer, ServiceExt, service_fn};
    use tracing::Instrument;
    use tracing::field::Empty as Later;

    let text = captured(LevelFilter::INFO, || {
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
        runtime.block_on(async {
            let locks = memory_manager();
            let handler = service_fn(|_: Request<Empty<bytes::Bytes>>| async {
                tracing::info!("handled");
                Ok::<_, Infallible>(Response::new(Empty::<bytes::Bytes>::new()))
            });
            let service = LockLayer::new(locks.clone(), path_segment(0)).layer(handler);
            let post = |path: &str| Request::post(path).body(Empty::new()).unwrap();
            let taken = locks.mutex("k1").acquire().await.unwrap();
            let all = tracing::info_span!("all", lock.key = Later, lock.token = Later, lock.wait_ms = Later);
            let waiting = service.clone().oneshot(post("/k1")).instrument(all);
            let released = async {
                tokio::time::sleep(Duration::from_millis(1500)).await;
                taken.release().await.unwrap();
            };
            let (response, ()) = tokio::join!(waiting, released);
            response.unwrap();
            let one = tracing::info_span!("one", lock.key = Later);
            service.oneshot(post("/k2")).instrument(one).await.unwrap();
        });
    });
    let line =
        |span: &str| text.lines().find(|line| line.contains("handled") && line.contains(span)).unwrap();
    let all = line("all{");
    assert!(all.contains("lock.key=\"k1\"") && all.contains("lock.wait_ms=1500"), "{text}");
    assert!(all.contains("lock.token="), "{text}");
    let one = line("one{");
    assert!(one.contains("lock.key=\"k2\"") && !one.contains("lock.token"), "{text}");
}
