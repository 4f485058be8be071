// An expression that is no `Duration`.
use lock_runtime::{LockError, distributed_lock};

const SECONDS: u64 = 5;

#[distributed_lock(key = "a", wait = SECONDS)]
async fn a() -> Result<(), LockError> {
    Ok(())
}

fn main() {}
