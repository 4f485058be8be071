// The same behind `impl Trait`.
use lock_runtime::distributed_lock;

#[distributed_lock(key = "a")]
async fn opaque() -> impl std::fmt::Display {
    "text"
}

fn main() {}
