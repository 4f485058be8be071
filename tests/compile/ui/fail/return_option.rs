// An `Option` has no room for the error.
use lock_runtime::distributed_lock;

#[distributed_lock(key = "a")]
async fn option() -> Option<u8> {
    Some(1)
}

fn main() {}
