//! The attribute's price in memory: the size of an annotated function's future beside the plain
//! one's.
//!
//! Arguments that the body moves on (into an awaited call, or a variable) are not measured here.
//! They count once more, since the function must keep them while it waits for the lock.

use std::mem::size_of_val;

use lock_runtime::{LockError, LockManager, MultiKey, distributed_lock, testing};

/// Maximum number of bytes that the attribute may add.
const BUDGET: usize = 256;

struct Order {
    id: u64,
    payload: [u8; 1016],
}

impl Order {
    fn new() -> Self {
        Self { id: 1, payload: [1; 1016] }
    }
}

/// Makes both functions with the same body; a macro, because a call would be another future.
macro_rules! pair {
    ($plain:ident, $locked:ident, ($($arg:pat_param => $ty:ty),*) $body:block, $($options:tt)*) => {
        async fn $plain($($arg: $ty),*) -> Result<u8, LockError> $body

        #[distributed_lock($($options)*)]
        async fn $locked($($arg: $ty),*) -> Result<u8, LockError> $body
    };
}

async fn pause() {
    tokio::task::yield_now().await;
}

pair!(plain_reads, locked_reads, (order => Order) {
    let buffer = [order.payload[0]; 2048];
    pause().await;
    Ok(buffer[1] + order.payload[1])
}, key = "order:<order.id>", wait = "5s");

pair!(plain_writes, locked_writes, (mut order => Order, locks => LockManager) {
    let buffer = [order.payload[0]; 2048];
    pause().await;
    order.payload[1] += 1;
    pause().await;
    let _ = &locks;
    Ok(buffer[1] + order.payload[1])
}, key = "order:<order.id>", guard = _lock, manager = locks, on_lost = finish);

pair!(plain_moves, locked_moves, (order => Order) {
    let buffer = [order.payload[0]; 2048];
    pause().await;
    let order = std::hint::black_box(order);
    Ok(buffer[1] + order.payload[1])
}, key = "order", lease = "5s");

pair!(plain_small, locked_small, (id => u64) {
    pause().await;
    Ok(u8::try_from(id).unwrap_or(0))
}, key = "order:<id>");

pair!(plain_reader, locked_reader, (order => Order, locks => LockManager) {
    let buffer = [order.payload[0]; 2048];
    pause().await;
    let _ = &locks;
    Ok(buffer[1] + order.payload[1])
}, key = "order:<order.id>", kind = read, guard = _lock, manager = locks);

pair!(plain_several, locked_several, (order => Order, locks => LockManager) {
    let buffer = [order.payload[0]; 2048];
    pause().await;
    let _ = &locks;
    Ok(buffer[1] + order.payload[1])
}, keys = ["order:<order.id>", "all", MultiKey::read("rates")], kind = write, prefix = "shop:", guard = _lock, manager = locks);

// The figures are for runs with `--nocapture`.
#[allow(clippy::print_stdout)]
#[track_caller]
fn within_budget(name: &str, plain: usize, locked: usize) {
    println!("{name}: plain {plain} B, annotated {locked} B, {} B more", locked.saturating_sub(plain));
    assert!(locked <= plain + BUDGET, "{name}: {plain} B became {locked} B");
}

#[tokio::test]
async fn an_annotated_future_is_little_larger_than_the_plain_one() {
    let locks = testing::memory_manager();
    within_budget("reads", size_of_val(&plain_reads(Order::new())), size_of_val(&locked_reads(Order::new())));
    within_budget(
        "writes",
        size_of_val(&plain_writes(Order::new(), locks.clone())),
        size_of_val(&locked_writes(Order::new(), locks.clone())),
    );
    within_budget("moves", size_of_val(&plain_moves(Order::new())), size_of_val(&locked_moves(Order::new())));
    within_budget(
        "reader",
        size_of_val(&plain_reader(Order::new(), locks.clone())),
        size_of_val(&locked_reader(Order::new(), locks.clone())),
    );
    within_budget(
        "several",
        size_of_val(&plain_several(Order::new(), locks.clone())),
        size_of_val(&locked_several(Order::new(), locks.clone())),
    );
    within_budget("small", size_of_val(&plain_small(1)), size_of_val(&locked_small(1)));
}
