// A fn without `async` gets no lock.
use lock_runtime::{LockError, distributed_lock};

#[distributed_lock(key = "a")]
fn not_async() -> Result<(), LockError> {
    Ok(())
}

fn main() {}
