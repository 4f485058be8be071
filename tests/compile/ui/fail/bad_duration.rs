// Texts that are no durations.
use lock_runtime::{LockError, distributed_lock};

#[distributed_lock(key = "a", wait = "1.5s")]
async fn a() -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(key = "a", wait = "5 parsecs")]
async fn b() -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(key = "a", wait = "")]
async fn c() -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(key = "a", wait = "99999999999999999d")]
async fn d() -> Result<(), LockError> {
    Ok(())
}

fn main() {}
