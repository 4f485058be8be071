// A template is one text in quotes.
use lock_runtime::{LockError, distributed_lock};

#[distributed_lock(key = concat!("order:", "<id>"))]
async fn joined(id: u64) -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(keys = [concat!("a:<", "id", '>'), &concat!("<id>")])]
async fn listed(id: u64) -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(key = "a", prefix = std::concat!(concat!("<id>"), ":"))]
async fn prefix(id: u64) -> Result<(), LockError> {
    Ok(())
}

fn main() {}
