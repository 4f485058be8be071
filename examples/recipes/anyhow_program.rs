//! # A program with `anyhow`
//!
//! Several runs of a command-line tool write invoices into one folder. Their numbers must have no
//! gaps and no duplicates, and an error should say what failed.
//!
//! **Copy** the attribute on a function that returns `anyhow::Result`: lock errors go through `?`
//! as all others do. After `set_default` in `main`, no function needs a manager.
//!
//! **Watch**
//! - `is_busy` and `is_retryable` are methods of `LockError`. `downcast_ref` finds it, also below a
//!   `context`.
//! - Before you repeat a call, ask `body_started`: the body may have lost its lock midway.
//! - Files check no fencing token. `create_new` at least never overwrites an invoice.
#![allow(clippy::print_stdout)]

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use lock_runtime::{LockError, LockManager, distributed_lock, set_default};
use tokio::fs::{self, OpenOptions};
use tokio::io::AsyncWriteExt;

/// Writes the next invoice, and returns its number.
#[distributed_lock(key = "invoices", wait = "5s")]
async fn write_invoice(folder: &Path, customer: &str) -> Result<u32> {
    let counter = folder.join("counter");
    let last =
        fs::read_to_string(&counter).await.with_context(|| format!("can't read {}", counter.display()))?;
    let number = last.parse::<u32>().with_context(|| format!("{last:?} is no number"))? + 1;
    let invoice = folder.join(format!("{number}.txt"));
    let mut file = OpenOptions::new().write(true).create_new(true).open(invoice).await?;
    file.write_all(customer.as_bytes()).await?;
    file.flush().await.context("can't write the invoice")?;
    fs::write(&counter, number.to_string()).await.context("can't write the counter")?;
    Ok(number)
}

/// Does not wait: the user of a command can try again.
#[distributed_lock(key = "invoices", wait = "none")]
async fn tidy_up(_folder: &Path) -> Result<()> {
    Ok(())
}

fn is_busy(error: &anyhow::Error) -> bool {
    error.downcast_ref::<LockError>().is_some_and(LockError::is_busy)
}

#[tokio::main]
async fn main() -> Result<()> {
    let url = std::env::var("LOCK_URL").unwrap_or_else(|_| "memory:".to_owned());
    let locks = LockManager::connect(url).await.context("can't connect to the locks")?;
    set_default(locks.clone());
    let folder = tempfile::tempdir()?;
    let folder = folder.path();
    fs::write(folder.join("counter"), "0").await?;

    let (ann, ben, cat) = tokio::try_join!(
        write_invoice(folder, "Ann"),
        write_invoice(folder, "Ben"),
        write_invoice(folder, "Cat")
    )?;
    println!("three at once got the numbers {ann}, {ben} and {cat}");
    let mut numbers = [ann, ben, cat];
    numbers.sort_unstable();
    ensure!(numbers == [1, 2, 3], "the numbers have gaps or duplicates: {numbers:?}");

    let guard = locks.mutex("invoices").acquire().await?;
    match tidy_up(folder).await.context("can't tidy up") {
        Err(error) if is_busy(&error) => println!("not now: {error:#}"),
        other => bail!("two had the lock: {other:?}"),
    }
    guard.release().await?;

    fs::write(folder.join("counter"), "four").await?;
    match write_invoice(folder, "Dan").await {
        Err(error) if !error.is::<LockError>() => println!("an error of the body: {error:#}"),
        other => bail!("the counter was read as a number: {other:?}"),
    }
    locks.shutdown(Duration::from_secs(5)).await?;
    Ok(())
}
