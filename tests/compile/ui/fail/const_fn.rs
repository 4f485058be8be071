// `const` and `async` exclude each other.
use lock_runtime::{LockError, distributed_lock};

#[distributed_lock(key = "a")]
const fn a() -> Result<(), LockError> {
    Ok(())
}

fn main() {}
