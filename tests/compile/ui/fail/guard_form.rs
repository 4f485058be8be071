// `guard` is a new variable.
use lock_runtime::{LockError, distributed_lock};

#[distributed_lock(key = "a", guard = id)]
async fn a(id: u64) -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(key = "a", guard = _)]
async fn b() -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(key = "a", guard = "lock")]
async fn c() -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(key = "a", guard = self.lock)]
async fn d() -> Result<(), LockError> {
    Ok(())
}

fn main() {}
