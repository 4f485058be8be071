//! Variables count as used whether the body or only the attribute uses them.
#![deny(unused_mut, unused_variables)]
use std::cell::Cell;

use lock_runtime::{LockError, distributed_lock};

const fn send<T: Send>(value: T) -> T {
    value
}

struct Two {
    number: u64,
    cell: Cell<u64>,
}

macro_rules! double {
    ($value:ident) => {
        $value.get() * 2
    };
}

#[distributed_lock(key = "<id>:<order.number>:<cell>")]
async fn in_the_key(id: u64, order: Two, (cell, _): (String, u8)) -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(key = format!("{id}"), wait = std::time::Duration::from_secs(wait), prefix = name)]
async fn in_an_option(id: u64, wait: u64, name: String) -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(key = "a")]
async fn in_a_format_string(id: u64, cell: Cell<u8>, width: Cell<usize>) -> Result<String, LockError> {
    let text = format!("{id} {cell:?}");
    tokio::task::yield_now().await;
    let width = width.into_inner();
    Ok(text + &format!("{:width$}", 1))
}

#[distributed_lock(key = "a")]
async fn in_a_macro(cell: Cell<u64>, other: Cell<u64>) -> Result<u64, LockError> {
    let before = double!(cell);
    tokio::task::yield_now().await;
    assert_eq!(before, double!(cell), "{}", other.get());
    Ok(before)
}

#[distributed_lock(key = "a")]
async fn shadowed_by_itself(id: String, cell: Cell<u8>) -> Result<usize, LockError> {
    let id = id.len();
    let cell = {
        tokio::task::yield_now().await;
        cell.get()
    };
    Ok(id + usize::from(cell))
}

/// Has a field named like an argument. The prefix is an expression, and not a text with a
/// placeholder.
#[distributed_lock(key = "a", prefix = concat!("<", env!("CARGO_PKG_NAME"), ">:"))]
async fn beside_a_field(number: Cell<u64>, two: Two) -> Result<u64, LockError> {
    let Two { number: other, cell } = two;
    let before = number.get();
    tokio::task::yield_now().await;
    Ok(before + number.get() + other + cell.get())
}

#[distributed_lock(key = "a")]
async fn in_closures_and_arms(a: Cell<u8>, b: Option<Cell<u8>>, c: Cell<u8>) -> Result<u8, LockError> {
    let value = {
        let f = |x: u8| x + a.get();
        f(1)
    };
    tokio::task::yield_now().await;
    match b {
        Some(b) if c.get() == 0 => Ok(b.get()),
        _ => Ok(value),
    }
}

#[distributed_lock(key = "a")]
async fn mutated(
    mut two: Two,
    (mut a, b): (Cell<u8>, Cell<u8>),
    mut list: Vec<u8>,
) -> Result<u64, LockError> {
    // Two fields of one argument: one is written, the other is only read and is not `Sync`.
    two.number += 1;
    two.cell.set(2);
    a = b.clone();
    list.push(1);
    tokio::task::yield_now().await;
    Ok(two.number + two.cell.get() + u64::from(a.get() + b.get()) + list.len() as u64)
}

impl Two {
    #[distributed_lock(key = "a")]
    async fn by_value(self, add: Cell<u64>) -> Result<u64, LockError> {
        self.cell.set(add.get());
        tokio::task::yield_now().await;
        Ok(self.cell.get())
    }

    #[distributed_lock(key = "a")]
    async fn by_mut_value(mut self) -> Result<Self, LockError> {
        self.number += 1;
        tokio::task::yield_now().await;
        self.cell.set(self.number);
        Ok(self)
    }
}

#[async_trait::async_trait]
trait Store {
    async fn save(&self, id: u64, text: String) -> Result<usize, LockError>;
}

#[async_trait::async_trait]
impl Store for String {
    #[distributed_lock(key = "<id>")]
    async fn save(&self, id: u64, text: String) -> Result<usize, LockError> {
        Ok(text.len())
    }
}

#[test]
fn compiles() {
    const fn two() -> Two {
        Two { number: 1, cell: Cell::new(1) }
    }
    const fn cell<T>(value: T) -> Cell<T> {
        Cell::new(value)
    }
    drop(send(in_the_key(1, two(), (String::new(), 1))));
    drop(send(in_an_option(1, 1, String::new())));
    drop(send(in_a_format_string(1, cell(1), cell(1))));
    drop(send(in_a_macro(cell(1), cell(1))));
    drop(send(shadowed_by_itself(String::new(), cell(1))));
    drop(send(in_closures_and_arms(cell(1), None, cell(1))));
    drop(send(beside_a_field(cell(1), two())));
    drop(send(mutated(two(), (cell(1), cell(1)), Vec::new())));
    drop(send(two().by_value(cell(1))));
    drop(send(two().by_mut_value()));
    drop(send("a".to_owned().save(1, String::new())));
}
