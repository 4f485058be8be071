// A value that can not be text.
use lock_runtime::{LockError, distributed_lock};

struct Order;

#[distributed_lock(key = "order:<order>")]
async fn a(order: Order) -> Result<(), LockError> {
    drop(order);
    Ok(())
}

#[distributed_lock(key = "order:<id>")]
async fn b(id: Option<u64>) -> Result<(), LockError> {
    drop(id);
    Ok(())
}

fn main() {}
