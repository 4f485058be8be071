// Unknown options, with what they may be called here.
use lock_runtime::{LockError, distributed_lock};

#[distributed_lock(key = "a", colour = "red")]
async fn a() -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(key = "a", timeout = "5s")]
async fn b() -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(key = "a", fair = true)]
async fn c() -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(multi = ["a", "b"])]
async fn d() -> Result<(), LockError> {
    Ok(())
}

fn main() {}
