// Words that only `wait` knows, and only as text.
use lock_runtime::{LockError, distributed_lock};

#[distributed_lock(key = "a", wait = none)]
async fn a() -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(key = "a", lease = "forever")]
async fn b() -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(key = "a", max_hold = "none")]
async fn c() -> Result<(), LockError> {
    Ok(())
}

fn main() {}
