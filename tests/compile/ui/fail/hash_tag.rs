// Braces that are not one hash tag.
use lock_runtime::{LockError, distributed_lock};

#[distributed_lock(key = "a{b")]
async fn a() -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(key = "{}:a")]
async fn b() -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(key = "{a}:{b}")]
async fn c() -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(key = "a:{b}", prefix = "{c}:")]
async fn d() -> Result<(), LockError> {
    Ok(())
}

fn main() {}
