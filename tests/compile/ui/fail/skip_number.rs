// A type without a value for "skipped".
use lock_runtime::{LockError, distributed_lock};

#[distributed_lock(key = "a", on_busy = skip)]
async fn number() -> Result<u8, LockError> {
    Ok(1)
}

fn main() {}
