// A body that holds something not `Send` across an await makes the future not `Send`.
use lock_runtime::{LockError, distributed_lock};

use std::rc::Rc;

#[distributed_lock(key = "a")]
async fn held(n: u8) -> Result<u8, LockError> {
    let rc = Rc::new(n);
    std::future::ready(()).await;
    Ok(*rc)
}

fn caller() {
    fn send(_: impl Send) {}
    send(held(1));
}

fn main() {}
