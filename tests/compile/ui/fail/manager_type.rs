// An expression that is no manager.
use lock_runtime::{LockError, LockManager, distributed_lock};

#[distributed_lock(key = "a", manager = text)]
async fn a(text: &str) -> Result<(), LockError> {
    let _ = text;
    Ok(())
}

struct Shop {
    locks: Option<LockManager>,
}

impl Shop {
    #[distributed_lock(key = "a", manager = self.locks)]
    async fn optional(&self) -> Result<(), LockError> {
        Ok(())
    }

    #[distributed_lock(keys = ["a", "b"], manager = self.locks)]
    async fn of_several(&self) -> Result<(), LockError> {
        Ok(())
    }
}

fn main() {}
