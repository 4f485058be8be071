// Expressions that are no keys.
use lock_runtime::{LockError, distributed_lock};

#[distributed_lock(keys = id)]
async fn a(id: u64) -> Result<u64, LockError> {
    Ok(id)
}

#[distributed_lock(keys = ids)]
async fn b(ids: &[u64]) -> Result<u64, LockError> {
    Ok(ids[0])
}

#[distributed_lock(keys = ["a", id])]
async fn c(id: u64) -> Result<u64, LockError> {
    Ok(id)
}

fn main() {}
