//! Functions that return a boxed future: written by hand, by `#[async_trait]`, or with another
//! macro in between.
use std::cell::Cell;
use std::future::Future;
use std::pin::Pin;

use async_trait::async_trait;
use lock_runtime::{LockError, distributed_lock};
use tracing::instrument;

type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

const fn send<T: Send>(value: T) -> T {
    value
}

#[distributed_lock(key = "order:<id>")]
fn boxed(id: u64) -> Pin<Box<dyn Future<Output = Result<u64, LockError>> + Send>> {
    let before = id + 1;
    Box::pin(async move {
        tokio::task::yield_now().await;
        if before == 0 {
            return Ok(0);
        }
        "1".parse::<u8>().map_err(|_| LockError::Misconfigured { reason: "x".into() })?;
        Ok(before)
    })
}

#[allow(clippy::elidable_lifetime_names)]
#[distributed_lock(key = "<cell_id>")]
fn alias<'a>(cell_id: &'a str, cell: Cell<u8>) -> BoxFuture<'a, Result<&'a str, LockError>> {
    std::boxed::Box::pin(async move {
        tokio::task::yield_now().await;
        cell.set(1);
        Ok(cell_id)
    })
}

#[distributed_lock(key = "<id>")]
#[allow(clippy::manual_async_fn)]
fn unboxed(id: u64) -> impl Future<Output = Result<u64, LockError>> + Send {
    async move { Ok(id) }
}

#[async_trait]
trait Store {
    async fn save(&self, id: u64, text: String) -> Result<usize, LockError>;
    async fn rename(&mut self, name: &str) -> Result<&str, LockError>;

    #[distributed_lock(key = "provided:<id>")]
    async fn provided(&self, id: u64) -> Result<u64, LockError> {
        Ok(id)
    }
}

struct Memory {
    name: String,
}

#[async_trait]
impl Store for Memory {
    #[distributed_lock(key = "<self.name>:<id>", guard = lock)]
    async fn save(&self, id: u64, mut text: String) -> Result<usize, LockError> {
        text.push_str(&self.name);
        tokio::task::yield_now().await;
        if lock.is_lost() {
            return Ok(usize::try_from(id).unwrap_or(0));
        }
        Ok(text.len())
    }

    #[instrument(skip_all)]
    #[distributed_lock(key = "<self.name>:<name>")]
    async fn rename(&mut self, name: &str) -> Result<&str, LockError> {
        name.clone_into(&mut self.name);
        tokio::task::yield_now().await;
        Ok(&self.name)
    }

    #[distributed_lock(key = "<id>")]
    #[instrument(skip(self))]
    async fn provided(&self, id: u64) -> Result<u64, LockError> {
        Ok(id)
    }
}

#[async_trait(?Send)]
trait Local {
    async fn go(&self, pair: (u8, u8)) -> Result<u8, LockError>;
}

#[async_trait(?Send)]
impl Local for Memory {
    #[distributed_lock(key = "<self.name>")]
    async fn go(&self, (a, b): (u8, u8)) -> Result<u8, LockError> {
        Ok(a + b)
    }
}

#[instrument]
#[distributed_lock(key = "<id>")]
async fn instrumented_above(id: u64, text: String) -> Result<String, LockError> {
    let _ = id;
    Ok(text)
}

#[distributed_lock(key = "<id>")]
#[instrument(ret, err, fields(id = %id))]
async fn instrumented_below(id: u64, text: String) -> Result<String, LockError> {
    Ok(text)
}

#[distributed_lock(key = "main", on_error = quit)]
#[tokio::main]
async fn entry() {}

#[allow(clippy::needless_pass_by_value)]
fn quit(error: LockError) {
    let _ = error;
}

#[test]
fn compiles() {
    let mut memory = Memory { name: "m".into() };
    drop(send(boxed(1)));
    drop(send(alias("a", Cell::new(1))));
    drop(send(unboxed(1)));
    drop(send(memory.save(1, "a".into())));
    drop(send(memory.rename("a")));
    drop(send(memory.provided(1)));
    drop(memory.go((1, 2)));
    drop(send(instrumented_above(1, "a".into())));
    drop(send(instrumented_below(1, "a".into())));
    let _ = entry;
}
