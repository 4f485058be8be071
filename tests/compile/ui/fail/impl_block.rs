// Methods are annotated one by one.
use lock_runtime::{LockError, distributed_lock};

struct S;

#[distributed_lock(key = "a")]
impl S {
    async fn a() -> Result<(), LockError> {
        Ok(())
    }
}

#[distributed_lock(key = "a")]
unsafe impl Send for S {}

fn main() {}
