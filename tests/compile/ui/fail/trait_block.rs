// Methods are annotated one by one.
use lock_runtime::{LockError, distributed_lock};

#[distributed_lock(key = "a")]
trait T {
    async fn a() -> Result<(), LockError>;
}

fn main() {}
