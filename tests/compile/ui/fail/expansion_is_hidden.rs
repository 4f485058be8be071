// The body does not see the names of the expansion.
use lock_runtime::{LockError, distributed_lock};

#[distributed_lock(key = "a")]
async fn a() -> Result<(), LockError> {
    drop(__lock_guard);
    drop(__lock_returns);
    Ok(())
}

fn main() {}
