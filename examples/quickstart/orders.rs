//! The orders: state that several requests and processes read and write at the same time.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;
use std::{fmt, fs, io, process};

use lock_runtime::{FencingToken, LockError};

/// Age after which the file of an order is ignored, as one that a killed process left behind.
const LIFE: Duration = Duration::from_secs(600);

/// One payment, as it is kept in its order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Payment {
    /// The request that made it; each request has another.
    pub(crate) operation: String,
    /// The token of the lock under which it was written.
    pub(crate) token: FencingToken,
}

/// The outcome of one request.
#[derive(Clone, Debug)]
pub(crate) struct Receipt {
    pub(crate) operation: String,
    pub(crate) token: FencingToken,
    pub(crate) waited: Duration,
}

/// The errors of a payment. The attribute only requires `From<LockError>`.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ShopError {
    #[error(transparent)]
    Lock(#[from] LockError),
    #[error("the orders can't be read or written: {0}")]
    File(#[from] io::Error),
    #[error("an order can't be read: {0:?} is not a payment")]
    NotAPayment(String),
}

/// Where the orders are. Nothing here protects a read and the write that follows it.
pub(crate) enum Orders {
    /// In this process.
    Memory(Mutex<HashMap<String, String>>),
    /// In files, one for each order, which all processes on this machine with the same `LOCK_URL`
    /// share.
    Files(PathBuf),
}

impl Orders {
    pub(crate) fn open(lock_url: Option<&str>) -> Result<Self, ShopError> {
        let Some(url) = lock_url.filter(|url| !url.starts_with("memory:")) else {
            return Ok(Self::Memory(Mutex::default()));
        };
        let mut hash = DefaultHasher::new();
        url.hash(&mut hash);
        let folder = std::env::temp_dir().join(format!("lock-quickstart-{:x}", hash.finish()));
        fs::create_dir_all(&folder)?;
        Ok(Self::Files(folder))
    }

    /// Returns the payments of an order, the earliest first.
    pub(crate) async fn read(&self, id: &str) -> Result<Vec<Payment>, ShopError> {
        let text = match self {
            Self::Memory(orders) => orders.lock().unwrap_or_else(PoisonError::into_inner).get(id).cloned(),
            Self::Files(folder) => read_file(&folder.join(file_name(id)))?,
        };
        // Another request may run here, as with a database.
        tokio::task::yield_now().await;
        text.unwrap_or_default().lines().map(parse).collect()
    }

    /// Replaces the payments of an order; an order without any is deleted.
    pub(crate) async fn write(&self, id: &str, payments: &[Payment]) -> Result<(), ShopError> {
        let text: String =
            payments.iter().map(|payment| format!("{} {}\n", payment.operation, payment.token)).collect();
        match self {
            Self::Memory(orders) => {
                let mut orders = orders.lock().unwrap_or_else(PoisonError::into_inner);
                if text.is_empty() {
                    orders.remove(id);
                } else {
                    orders.insert(id.to_owned(), text);
                }
            }
            Self::Files(folder) => write_file(folder, &file_name(id), &text)?,
        }
        tokio::task::yield_now().await;
        Ok(())
    }
}

fn file_name(id: &str) -> String {
    id.replace(':', "-")
}

fn read_file(path: &Path) -> io::Result<Option<String>> {
    let is_young =
        |file: &fs::Metadata| file.modified().is_ok_and(|time| time.elapsed().is_ok_and(|age| age < LIFE));
    match fs::metadata(path).and_then(|file| Ok((is_young(&file), fs::read_to_string(path)?))) {
        Ok((is_young, text)) => Ok(is_young.then_some(text)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Replaces a file, so that a concurrent reader finds either the old text or the new one.
fn write_file(folder: &Path, name: &str, text: &str) -> io::Result<()> {
    static NEXT: AtomicU64 = AtomicU64::new(0);

    if text.is_empty() {
        return match fs::remove_file(folder.join(name)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        };
    }
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let new = folder.join(format!("{name}.{}.{number}", process::id()));
    fs::write(&new, text)?;
    fs::rename(&new, folder.join(name))
}

fn parse(line: &str) -> Result<Payment, ShopError> {
    let wrong = || ShopError::NotAPayment(line.to_owned());
    let (operation, token) = line.split_once(' ').ok_or_else(wrong)?;
    let token = FencingToken::new(token.parse().map_err(|_| wrong())?);
    Ok(Payment { operation: operation.to_owned(), token })
}

impl fmt::Display for Orders {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Memory(_) => "in memory (with LOCK_URL=redis://127.0.0.1:6379 on Redis)",
            Self::Files(_) => "with the locks of LOCK_URL (start several at once: they share the orders)",
        })
    }
}

/// Returns the problems in an order, as far as these receipts show them.
///
/// Works while other processes pay for the same order: their payments may be there, but must be in
/// order too.
pub(crate) fn check(order: &[Payment], receipts: &[Receipt]) -> Vec<String> {
    let mut problems = Vec::new();
    for Receipt { operation, token, .. } in receipts {
        let found: Vec<&Payment> = order.iter().filter(|payment| payment.operation == *operation).collect();
        match found.as_slice() {
            [payment] if payment.token == *token => {}
            [payment] => {
                problems.push(format!("payment {operation} has token {} instead of {token}", payment.token));
            }
            [] => problems.push(format!("payment {operation} is lost")),
            _ => problems.push(format!("payment {operation} is there {} times", found.len())),
        }
    }
    for (earlier, later) in order.iter().zip(order.iter().skip(1)) {
        if earlier.token >= later.token {
            let Payment { operation, token } = later;
            problems.push(format!("payment {operation} with token {token} came after {}", earlier.token));
        }
    }
    problems
}

/// Returns the number of these payments that are not in the order.
pub(crate) fn lost(order: &[Payment], receipts: &[Receipt]) -> usize {
    let is_there = |receipt: &Receipt| order.iter().any(|payment| payment.operation == receipt.operation);
    receipts.iter().filter(|receipt| !is_there(receipt)).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    impl Orders {
        pub(crate) fn is_empty(&self) -> bool {
            match self {
                Self::Memory(orders) => orders.lock().unwrap().is_empty(),
                Self::Files(folder) => fs::read_dir(folder).unwrap().next().is_none(),
            }
        }
    }

    fn payment(operation: &str, token: u64) -> Payment {
        Payment { operation: operation.to_owned(), token: FencingToken::new(token) }
    }

    fn receipt(operation: &str, token: u64) -> Receipt {
        let token = FencingToken::new(token);
        Receipt { operation: operation.to_owned(), token, waited: Duration::ZERO }
    }

    #[test]
    fn payments_of_others_are_no_problem() {
        let order = [payment("a/1", 3), payment("b/1", 4), payment("a/2", 8)];
        assert_eq!(check(&order, &[receipt("a/2", 8), receipt("a/1", 3)]), [""; 0]);
        assert_eq!(lost(&order, &[receipt("a/1", 3)]), 0);
    }

    #[test]
    fn lost_doubled_and_disordered_payments_are_found() {
        let order = [payment("a", 3), payment("b", 5), payment("b", 4)];
        assert_eq!(
            check(&order, &[receipt("a", 2), receipt("b", 5), receipt("c", 6)]),
            [
                "payment a has token 3 instead of 2",
                "payment b is there 2 times",
                "payment c is lost",
                "payment b with token 4 came after 5",
            ]
        );
        assert_eq!(lost(&order, &[receipt("a", 2), receipt("c", 6)]), 1);
    }

    #[tokio::test]
    async fn an_order_is_read_as_it_was_written() {
        let url = format!("redis://a-test-of-{}", process::id());
        for orders in [Orders::open(None).unwrap(), Orders::open(Some(&url)).unwrap()] {
            let order = [payment("a/1", 3), payment("b/1", 4)];
            assert_eq!(orders.read("1").await.unwrap(), []);
            orders.write("1", &order).await.unwrap();
            assert_eq!(orders.read("1").await.unwrap(), order);
            orders.write("1", &[]).await.unwrap();
            orders.write("1", &[]).await.unwrap();
            assert!(orders.is_empty());
            if let Orders::Files(folder) = orders {
                fs::remove_dir(folder).unwrap();
            }
        }
    }
}
