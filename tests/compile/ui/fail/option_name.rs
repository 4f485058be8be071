// A name for metrics is one of few.
use lock_runtime::{LockError, distributed_lock};

#[distributed_lock(key = "order:<id>", name = "order:<id>")]
async fn placeholder(id: u64) -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(key = "order:<id>", name = 5)]
async fn number(id: u64) -> Result<(), LockError> {
    Ok(())
}

fn main() {}
