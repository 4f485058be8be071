// An expression that is no manager.
use lock_runtime::{LockError, distributed_lock};

#[distributed_lock(key = "a", manager = text)]
async fn a(text: &str) -> Result<(), LockError> {
    let _ = text;
    Ok(())
}

fn main() {}
