// All mistakes are reported at once.
use lock_runtime::{LockError, distributed_lock};

#[distributed_lock(key = "<oder>", wait = 5, lease = "soon", colour = 1, on_lost = explode)]
const fn several(order: u64) -> Result<(), LockError> {
    Ok(())
}

fn main() {}
