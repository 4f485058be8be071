// Skipping covers the busy errors only.
use lock_runtime::distributed_lock;

#[distributed_lock(key = "a", on_busy = skip)]
async fn unit() {}

fn main() {}
