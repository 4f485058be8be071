// The same through an alias.
use lock_runtime::distributed_lock;

type Answer<T> = Result<T, std::fmt::Error>;

#[distributed_lock(key = "a")]
async fn alias() -> Answer<()> {
    Ok(())
}

fn main() {}
