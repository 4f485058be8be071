// Nothing lasts zero seconds.
use lock_runtime::{LockError, distributed_lock};

#[distributed_lock(key = "a", wait = "0s")]
async fn a() -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(key = "a", lease = "0ms")]
async fn b() -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(key = "a", max_hold = "0m", min_hold = "0h")]
async fn c() -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(key = "a", wait = "0")]
async fn d() -> Result<(), LockError> {
    Ok(())
}

fn main() {}
