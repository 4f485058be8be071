// The same in a method of an `#[async_trait]` impl.
use lock_runtime::distributed_lock;

struct S;

#[async_trait::async_trait]
trait T {
    async fn go(&self) -> u8;
}

#[async_trait::async_trait]
impl T for S {
    #[distributed_lock(key = "a")]
    async fn go(&self) -> u8 {
        1
    }
}

fn main() {}
