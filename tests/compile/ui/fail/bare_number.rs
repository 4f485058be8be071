// A number is no duration.
use lock_runtime::{LockError, distributed_lock};

#[distributed_lock(key = "a", wait = 5)]
async fn a() -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(key = "a", lease = 500ms)]
async fn b() -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(key = "a", wait = "30")]
async fn c() -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(key = "a", max_hold = -1)]
async fn d() -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(key = "a", min_hold = 1.5)]
async fn e() -> Result<(), LockError> {
    Ok(())
}

fn main() {}
