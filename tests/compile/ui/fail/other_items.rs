// Items that are no functions.
use lock_runtime::distributed_lock;

#[distributed_lock(key = "a")]
struct S;

#[distributed_lock(key = "a")]
enum E {}

#[distributed_lock(key = "a")]
mod m {}

#[distributed_lock(key = "a")]
const C: u8 = 1;

#[distributed_lock(key = "a")]
static D: u8 = 1;

#[distributed_lock(key = "a")]
use std::fmt;

fn main() {}
