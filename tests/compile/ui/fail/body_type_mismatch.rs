// Mistakes in the body are reported as without the attribute.
use lock_runtime::{LockError, distributed_lock};

#[distributed_lock(key = "a")]
async fn tail() -> Result<u8, LockError> {
    "text"
}

#[distributed_lock(key = "a")]
async fn early(n: u8) -> Result<u8, LockError> {
    if n == 0 {
        return Ok("text");
    }
    Ok(1)
}

#[distributed_lock(key = "a")]
async fn question() -> Result<u8, LockError> {
    "1".parse::<u8>()?;
    Ok(1)
}

#[distributed_lock(key = "a")]
async fn missing() -> Result<u8, LockError> {
    let _ = 1;
}

fn main() {}
