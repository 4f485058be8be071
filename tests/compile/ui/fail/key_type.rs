// An expression that is no key.
use lock_runtime::{LockError, distributed_lock};

#[distributed_lock(key = id)]
async fn a(id: u64) -> Result<u64, LockError> {
    Ok(id)
}

#[distributed_lock(key = 42)]
async fn b() -> Result<(), LockError> {
    Ok(())
}

fn main() {}
