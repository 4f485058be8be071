// `extern` fns are not async.
use lock_runtime::distributed_lock;

#[distributed_lock(key = "a")]
extern "C" fn a() {}

fn main() {}
