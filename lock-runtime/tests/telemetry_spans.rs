//! What a user sees of locks in traces. One test in its process: the interest of call sites is cached per process.
#![allow(missing_docs)]

mod some_locks;

use std::io;
use std::sync::{Arc, Mutex};

use some_locks::some_locks;

#[derive(Clone, Default)]
struct Buffer(Arc<Mutex<Vec<u8>>>);

impl io::Write for Buffer {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn spans_have_key_wait_token_and_outcome() {
    let buffer = Buffer::default();
    let writer = buffer.clone();
    let subscriber = tracing_subscriber::fmt()
        .with_max_level(tracing_subscriber::filter::LevelFilter::DEBUG)
        .with_ansi(false)
        .with_writer(move || writer.clone())
        .finish();
    tracing::subscriber::with_default(subscriber, || {
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
        runtime.block_on(some_locks());
    });
    let text = String::from_utf8(buffer.0.lock().unwrap().clone()).unwrap();
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
