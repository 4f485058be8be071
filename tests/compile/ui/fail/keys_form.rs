// What `keys` can't be, and what its texts can't be.
use lock_runtime::{LockError, distributed_lock};

#[distributed_lock(key = "a", keys = ["b", "c"])]
async fn a() -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(keys = "account:<id>")]
async fn b(id: u64) -> Result<u64, LockError> {
    Ok(id)
}

#[distributed_lock(keys = [])]
async fn c() -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(keys = ["account:<id>", "account:<other>", 7, "", MultiKey::read("rates:<day>")])]
async fn d(id: u64) -> Result<u64, LockError> {
    Ok(id)
}

#[distributed_lock(keys = ["account:<other>", MultiKey::read("rates:<day>"), "{a}{b}"])]
async fn e(id: u64) -> Result<u64, LockError> {
    Ok(id)
}

#[distributed_lock(keys = ["{a}{b}", "{<id>}"], prefix = "{c}")]
async fn f(id: u64) -> Result<u64, LockError> {
    Ok(id)
}

#[distributed_lock(key = ["a", "b"])]
async fn g() -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(keys)]
async fn h() -> Result<(), LockError> {
    Ok(())
}

fn main() {}
