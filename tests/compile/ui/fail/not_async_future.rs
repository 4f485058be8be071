// A fn that returns a future, but not from an `async` block at its end.
use lock_runtime::{LockError, distributed_lock};

use std::future::Future;
use std::pin::Pin;

#[distributed_lock(key = "a")]
fn made_elsewhere() -> Pin<Box<dyn Future<Output = Result<(), LockError>>>> {
    let future = async { Ok(()) };
    Box::pin(future)
}

fn main() {}
