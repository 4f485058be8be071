// A key expression that moves what the body needs.
use lock_runtime::{LockError, distributed_lock};

#[distributed_lock(key = name)]
async fn a(name: String) -> Result<String, LockError> {
    Ok(name)
}

fn main() {}
