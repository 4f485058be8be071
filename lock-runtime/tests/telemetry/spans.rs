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
    line("outcome=\"handed_on\"");
    assert!(text.lines().any(|line| line.contains("WARN") && line.contains("lock lost")), "{text}");
}
