// Options are `name = value`, with commas between.
use lock_runtime::{LockError, distributed_lock};

#[distributed_lock(key)]
async fn a() -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(key = "a", wait("5s"))]
async fn b() -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(key = "a" wait = "5s")]
async fn c() -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(key = , wait = "5s")]
async fn d() -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(key = "a", 5)]
async fn e() -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(key = "a", on_lost = "cancel")]
async fn f() -> Result<(), LockError> {
    Ok(())
}

fn main() {}
