// A placeholder is an argument, not a constant.
use lock_runtime::{LockError, distributed_lock};

const SHARD: u8 = 1;

#[distributed_lock(key = "shard:<N>")]
async fn generic<const N: usize>() -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(keys = ["shard:<SHARD>", "<SHARD>"])]
async fn constant() -> Result<(), LockError> {
    Ok(())
}

fn main() {}
