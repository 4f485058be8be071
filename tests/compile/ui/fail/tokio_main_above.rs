// `#[tokio::main]` above leaves no async fn.
use lock_runtime::{LockError, distributed_lock};

#[tokio::main]
#[distributed_lock(key = "a")]
async fn entry() -> Result<(), LockError> {
    Ok(())
}

fn main() {}
