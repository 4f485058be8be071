// `kind` is one of four names, without quotes.
use lock_runtime::{Kind, LockError, distributed_lock};

#[distributed_lock(key = "a", kind = shared)]
async fn a() -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(key = "a", kind = "read")]
async fn b() -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(key = "a", kind = Kind::Read)]
async fn c(kind: Kind) -> Result<(), LockError> {
    let _ = kind;
    Ok(())
}

#[distributed_lock(key = "a", kind)]
async fn d() -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(key = "a", kind = read, kind = write)]
async fn e() -> Result<(), LockError> {
    Ok(())
}

fn main() {}
