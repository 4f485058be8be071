// A `Result` whose error is not made from a `LockError`.
use lock_runtime::distributed_lock;

struct Mine;

#[distributed_lock(key = "a")]
async fn foreign() -> Result<Vec<u8>, Mine> {
    Ok(Vec::new())
}

fn main() {}
