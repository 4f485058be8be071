// A fallback that makes another type, takes another argument, or is not there.
use lock_runtime::{LockError, distributed_lock};

fn wrong_type(_: LockError) -> u16 {
    0
}

fn wrong_argument(_: u8) -> u8 {
    0
}

async fn not_plain(_: LockError) -> u8 {
    0
}

#[distributed_lock(key = "a", on_error = wrong_type)]
async fn a() -> u8 {
    1
}

#[distributed_lock(key = "a", on_error = wrong_argument)]
async fn b() -> u8 {
    1
}

#[distributed_lock(key = "a", on_error = nowhere)]
async fn c() -> u8 {
    1
}

#[distributed_lock(key = "a", on_error = not_plain)]
async fn d() -> u8 {
    1
}

fn main() {}
