//! Every form of a placeholder.
use lock_runtime::{LockError, distributed_lock};

struct Item {
    sku: String,
    pair: (u8, (u16, u32)),
}

struct Order {
    id: u64,
    items: Vec<Item>,
    r#type: String,
}

#[distributed_lock(key = "<order.id>:<order.items[0].sku>:<order.items[1].pair.1.0>:<order.type>")]
async fn fields(order: &Order) -> Result<(), LockError> {
    let _ = order;
    Ok(())
}

#[distributed_lock(key = "<items[0]>:<array[2]>:<slice[0]>:<nested[0][1]>")]
async fn indices(
    items: Vec<String>,
    array: [u8; 3],
    slice: &[u64],
    nested: Vec<Vec<u8>>,
) -> Result<(), LockError> {
    let _ = (items, array, slice, nested);
    Ok(())
}

#[distributed_lock(key = "a<<b>:<r#type>:<match>")]
async fn raw(r#type: &str, r#match: u8) -> Result<(), LockError> {
    let _ = (r#type, r#match);
    Ok(())
}

struct Turn {
    r#gen: u64,
    r#async: u64,
}

#[distributed_lock(key = "<turn.gen>:<turn.r#gen>:<gen>:<r#gen>:<turn.async>:<try>")]
async fn reserved_since(turn: Turn, r#gen: u8, r#try: u8) -> Result<(), LockError> {
    let _ = turn;
    Ok(())
}

#[distributed_lock(key = "<a>:<b>:<_c>:<d>")]
async fn patterns((a, b): (u32, String), [_c, ..]: [u8; 2], Wrapped(d): Wrapped) -> Result<(), LockError> {
    let _ = (a, b, d);
    Ok(())
}

struct Wrapped(Box<str>);

#[distributed_lock(key = "<count>")]
async fn counts(mut count: u64) -> Result<u64, LockError> {
    count += 1;
    Ok(count)
}

macro_rules! locked {
    ($name:ident, $key:literal, $wait:expr) => {
        #[distributed_lock(key = $key, wait = $wait)]
        async fn $name(id: u64) -> Result<u64, LockError> {
            Ok(id)
        }
    };
}

locked!(from_a_macro, "order:<id>", "5s");

#[test]
fn compiles() {
    fn used<F>(_: F) {}
    used(fields);
    used((indices, raw, reserved_since, patterns, counts, from_a_macro));
}
