// Pairs of options that can not both be meant.
use lock_runtime::{LockError, distributed_lock};

#[distributed_lock(key = "a", max_hold = "1s", min_hold = "2s")]
async fn a() -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(key = "a", lease = "10s", max_hold = "5s")]
async fn b() -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(key = "a", lease = "10s", min_hold = "11s")]
async fn c() -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(key = "a", lease = "50ms")]
async fn d() -> Result<(), LockError> {
    Ok(())
}

fn main() {}
