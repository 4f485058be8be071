// Fallbacks are paths.
use lock_runtime::{LockError, distributed_lock};

#[distributed_lock(key = "a", on_error = |_| 0)]
async fn closure() -> u8 {
    1
}

#[distributed_lock(key = "a", on_busy = fallback(), on_error = fallback)]
async fn called() -> u8 {
    1
}

#[distributed_lock(key = "a", on_error = skip)]
async fn skipped() -> u8 {
    1
}

#[distributed_lock(key = "a", on_busy = "skip")]
async fn quoted() -> Result<(), LockError> {
    Ok(())
}

fn main() {}
