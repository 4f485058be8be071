// A fn that returns a future leaves before the part that is locked.
use std::pin::Pin;

use lock_runtime::{LockError, distributed_lock};

type Later<T> = Pin<Box<dyn Future<Output = Result<T, LockError>> + Send>>;

#[distributed_lock(key = "a")]
fn early(n: u8) -> Later<u8> {
    if n == 0 {
        return Box::pin(async { Ok(9) });
    }
    Box::pin(async move { Ok(n) })
}

#[distributed_lock(key = "a")]
fn of_others(n: u8) -> Later<u8> {
    let double = |n: u8| {
        return n * 2;
    };
    let later = async move { return n };
    fn inner() -> u8 {
        return 1;
    }
    Box::pin(async move { return Ok(double(n) + later.await + inner()) })
}

fn main() {}
