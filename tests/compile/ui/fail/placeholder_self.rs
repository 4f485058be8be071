// `self` where there is none.
use lock_runtime::{LockError, distributed_lock};

#[distributed_lock(key = "<self.id>")]
async fn a(id: u64) -> Result<(), LockError> {
    Ok(())
}

fn main() {}
