//! # A service in an `Arc`, locked per order
//!
//! Two requests change the same order at once, perhaps in two instances of the service. Each reads
//! the order, works, and writes it back, so one of the two changes would be lost.
//!
//! **Copy** the field `locks`, the option `manager = self.locks`, and the variant
//! `Lock(#[from] LockError)` of the error type. Nothing is global: each test can build a service
//! with its own manager.
//!
//! **Watch**
//! - The key names the data, not the method. Both methods are about an order, so both have the key
//!   `order:<id>`, and exclude each other.
//! - A locked method may call another one with the same id, which enters the lock again. For two
//!   ids, name both in one attribute: `keys = ["order:<from>", "order:<to>"]`. Nested calls with
//!   different ids in opposite order would wait for each other.
//! - `wait` should be shorter than the time-out of your caller.
#![allow(clippy::print_stdout)]

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Result, bail};
use lock_runtime::{LockError, LockManager, distributed_lock};
use tokio::task::JoinSet;

#[derive(Debug, thiserror::Error)]
enum ShopError {
    #[error("order {0} does not exist")]
    NoSuchOrder(u32),
    #[error(transparent)]
    Lock(#[from] LockError),
}

struct Shop {
    locks: LockManager,
    /// The number of items in each order; it stands for a database.
    orders: Mutex<HashMap<u32, u32>>,
}

impl Shop {
    #[distributed_lock(key = "order:<id>", manager = self.locks, wait = "5s")]
    async fn add(&self, id: u32, quantity: u32) -> Result<u32, ShopError> {
        let items = self.read(id)?;
        tokio::time::sleep(Duration::from_millis(5)).await; // asks for a price
        self.write(id, items + quantity);
        Ok(items + quantity)
    }

    /// Does not wait: a customer who pays an order that is being changed is told so at once.
    #[distributed_lock(key = "order:<id>", manager = self.locks, wait = "none")]
    async fn pay(&self, id: u32) -> Result<u32, ShopError> {
        self.read(id)
    }

    fn read(&self, id: u32) -> Result<u32, ShopError> {
        let orders = self.orders.lock().unwrap_or_else(PoisonError::into_inner);
        orders.get(&id).copied().ok_or(ShopError::NoSuchOrder(id))
    }

    fn write(&self, id: u32, items: u32) {
        self.orders.lock().unwrap_or_else(PoisonError::into_inner).insert(id, items);
    }
}

#[tokio::main]
async fn main() -> Result<()> {
    let url = std::env::var("LOCK_URL").unwrap_or_else(|_| "memory:".to_owned());
    let locks = LockManager::connect(url).await?;
    let shop = Arc::new(Shop { locks: locks.clone(), orders: Mutex::new([(7, 0)].into()) });

    let mut requests = JoinSet::new();
    for _ in 0..20 {
        let shop = Arc::clone(&shop);
        requests.spawn(async move { shop.add(7, 1).await });
    }
    while let Some(added) = requests.join_next().await {
        added??;
    }
    let items = shop.read(7)?;
    println!("20 requests at once have added {items} items");
    if items != 20 {
        bail!("{} of 20 changes were lost", 20 - items);
    }

    // The caller tells an error of the shop from a lock that it did not get.
    match shop.add(8, 1).await {
        Err(ShopError::NoSuchOrder(8)) => println!("404: order 8 does not exist"),
        other => bail!("order 8: {other:?}"),
    }
    let guard = locks.mutex("order:7").acquire().await?;
    match shop.pay(7).await {
        Err(ShopError::Lock(error)) if error.is_busy() => println!("409: {error}"),
        other => bail!("paid while another caller had the order: {other:?}"),
    }
    guard.release().await?;
    locks.shutdown(Duration::from_secs(5)).await?;
    Ok(())
}
