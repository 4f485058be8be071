// Braces are not placeholders.
use lock_runtime::{LockError, distributed_lock};

#[distributed_lock(key = "order:{id}")]
async fn a(id: u64) -> Result<(), LockError> {
    Ok(())
}

struct Order {
    id: u64,
}

#[distributed_lock(key = "order:{order.id:?}")]
async fn b(order: Order) -> Result<(), LockError> {
    Ok(())
}

fn main() {}
