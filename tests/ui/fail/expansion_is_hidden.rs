// The body does not see the names of the expansion.
use lock_runtime::{LockError, distributed_lock};

#[distributed_lock(key = "a")]
async fn a() -> Result<(), LockError> {
    drop(guard);
    drop(returns);
    Ok(())
}

fn main() {}
