//! A process that sells from a stock in a database, and may die in the middle of it.
//!
//! - `sql_seller <database> deed <stock> <deed> <step>` does the [`Deed`] and says `done`.
//!   If it comes to this step, counted from 0, it kills itself with SIGKILL there.
//! - `sql_seller <database> sell <stock> <name> <attempts>` makes this many attempts to
//!   sell one to three units, and says `sold <units>`.
//!
//! `<database>` is `sqlite:<file>`, `postgres://…`, `mysql://…` or `mongodb://…`.
#![allow(clippy::print_stdout, reason = "answers go to stdout")]

use std::sync::atomic::{AtomicU64, Ordering};

use lock_core::internal::steps::on_stock_step;
use lock_runtime::LockManager;
use lock_runtime::segmented::StockError;
use lock_tests::stock_sql::{Deed, PATIENCE, stock};

#[tokio::main]
async fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [database, what, name, rest @ ..] = &args[..] else {
        panic!("arguments as in the doc comment of this file")
    };
    let locks = LockManager::connect(database).await.unwrap();
    let stock = stock(&locks, name);
    match (what.as_str(), rest) {
        ("deed", [deed, last]) => {
            let (deed, last): (Deed, u64) = (deed.parse().unwrap(), last.parse().unwrap());
            let steps = AtomicU64::new(0);
            on_stock_step(move |_| {
                if steps.fetch_add(1, Ordering::Relaxed) == last {
                    let own = rustix::process::getpid();
                    rustix::process::kill_process(own, rustix::process::Signal::KILL).unwrap();
                    // The signal may arrive a moment later, and nothing may be done meanwhile.
                    loop {
                        std::thread::park();
                    }
                }
            });
            deed.act(&stock).await.unwrap();
            println!("done");
        }
        ("sell", [own, attempts]) => {
            let mut sold = 0;
            for attempt in 0..attempts.parse::<u64>().unwrap() {
                let quantity = attempt % 3 + 1;
                loop {
                    match stock.take(format!("{own}:{attempt}"), quantity).await {
                        Ok(_) => sold += quantity,
                        Err(StockError::SoldOut { .. }) => {}
                        Err(StockError::Contended { .. }) => continue,
                        Err(error) => panic!("{error}"),
                    }
                    break;
                }
            }
            println!("sold {sold}");
        }
        _ => panic!("arguments as in the doc comment of this file"),
    }
    locks.shutdown(PATIENCE).await.unwrap();
}
