// What is not an argument with fields and indices.
use lock_runtime::{LockError, distributed_lock};

#[distributed_lock(key = "<id()>:<a b>:<>:<items[i]>:<1>")]
async fn a(id: u64) -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(key = "order:<id")]
async fn b(id: u64) -> Result<(), LockError> {
    Ok(())
}

fn main() {}
