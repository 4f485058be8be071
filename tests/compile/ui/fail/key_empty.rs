// A lock has a name.
use lock_runtime::{LockError, distributed_lock};

#[distributed_lock(key = "")]
async fn a() -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(key = "a", prefix = "")]
async fn b() -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(key = "a\nb")]
async fn c() -> Result<(), LockError> {
    Ok(())
}

fn main() {}
