// Skipping covers the busy errors only.
use lock_runtime::distributed_lock;

#[distributed_lock(key = "a", on_busy = skip)]
async fn option() -> Option<u8> {
    Some(1)
}

fn main() {}
