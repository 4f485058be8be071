// An option given twice.
use lock_runtime::{LockError, distributed_lock};

#[distributed_lock(key = "a", wait = "5s", key = "b", wait = "6s")]
async fn twice() -> Result<(), LockError> {
    Ok(())
}

fn main() {}
