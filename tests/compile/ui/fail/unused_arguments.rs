// What is unused in the plain function is unused in the annotated one.
#![deny(unused_mut, unused_variables)]
use std::cell::Cell;

use lock_runtime::{LockError, distributed_lock};

struct Order {
    id: u64,
    text: String,
}

#[distributed_lock(key = "a")]
async fn forgotten(id: u64, order: Order, (a, b): (Cell<u8>, Cell<u8>), list: &[u8]) -> Result<u8, LockError> {
    Ok(a.get())
}

#[distributed_lock(key = "order:<id>")]
async fn not_mutated(mut id: u64, mut order: Order, (mut a, _): (Cell<u8>, u8)) -> Result<u64, LockError> {
    a.set(1);
    tokio::task::yield_now().await;
    Ok(id + order.id + u64::from(a.get()))
}

#[distributed_lock(key = "a")]
async fn shadowed(id: u64, order: Order) -> Result<u64, LockError> {
    let order = Order { id: 1, text: String::new() };
    let double = |id: u64| id + order.text.len() as u64;
    Ok(double(order.id))
}

#[distributed_lock(key = "a")]
async fn of_another_thing(id: u64, text: Cell<u8>, order: &Order) -> Result<usize, LockError> {
    println!("{} {{id}}", order.id);
    Ok(order.text.len())
}

struct Shop;

impl Shop {
    #[distributed_lock(key = "a")]
    async fn method(mut self, id: u64) -> Result<Shop, LockError> {
        Ok(self)
    }
}

#[async_trait::async_trait]
trait Store {
    async fn save(&self, id: u64, text: String) -> Result<(), LockError>;
}

#[async_trait::async_trait]
impl Store for Shop {
    #[distributed_lock(key = "<id>")]
    async fn save(&self, id: u64, text: String) -> Result<(), LockError> {
        Ok(())
    }
}

fn main() {}
