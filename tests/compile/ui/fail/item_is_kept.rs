// With a mistake in the attribute the function is still there: only the attribute is reported.
use lock_runtime::{LockError, distributed_lock};

#[distributed_lock(key = "a", wait = 5)]
async fn kept(id: u64) -> Result<u64, LockError> {
    Ok(id)
}

async fn caller() -> Result<u64, LockError> {
    kept(1).await
}

fn main() {}
