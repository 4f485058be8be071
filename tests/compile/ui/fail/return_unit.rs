// Nothing to return the error in.
use lock_runtime::distributed_lock;

#[distributed_lock(key = "a")]
async fn unit() {}

fn main() {}
