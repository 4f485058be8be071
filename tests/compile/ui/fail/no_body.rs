// A method without a body.
use lock_runtime::{LockError, distributed_lock};

trait Work {
    #[distributed_lock(key = "a")]
    async fn run(&self) -> Result<(), LockError>;
}

fn main() {}
