// What was meant by a misspelt name.
use lock_runtime::{LockError, distributed_lock};

#[distributed_lock(kye = "a", wiat = "5s", leese = "30s", kin = read, waits = "5s", timout = "5s")]
async fn options() -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(key = "a", kind = reed)]
async fn kind() -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(key = "a", kind = "wrte", on_lost = finsh, wait = "forevr")]
async fn values() -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(key = "a", on_busy = "skip", on_error = "path::to", guard = "lock")]
async fn quoted() -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(key = "<idd>:<oder.lines[0].sku>:<typ>")]
async fn placeholders(id: u64, order: u64, r#type: &str) -> Result<(), LockError> {
    Ok(())
}

struct Shop;

impl Shop {
    #[distributed_lock(key = "<slef.id>")]
    async fn receiver(&self) -> Result<(), LockError> {
        Ok(())
    }
}

fn main() {}
