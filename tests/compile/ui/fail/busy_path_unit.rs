// A fallback for busy calls leaves the other errors.
use lock_runtime::{LockError, distributed_lock};

fn fallback(_: LockError) {}

#[distributed_lock(key = "a", on_busy = fallback)]
async fn unit() {}

fn main() {}
