// A lock has a name.
use lock_runtime::{LockError, distributed_lock};

#[distributed_lock]
async fn a() -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(wait = "5s")]
async fn b() -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock("order")]
async fn c() -> Result<(), LockError> {
    Ok(())
}

fn main() {}
