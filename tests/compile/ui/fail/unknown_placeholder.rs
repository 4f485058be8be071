// A placeholder without an argument.
use lock_runtime::{LockError, distributed_lock};

#[distributed_lock(key = "order:<oid>")]
async fn a(id: u64, (b, _): (u8, u8)) -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(key = "order:<id>:<x.y>")]
async fn b() -> Result<(), LockError> {
    Ok(())
}

fn main() {}
