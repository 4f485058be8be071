//! A process that sells from a stock, and writes its questions and their answers to a journal.
//!
//! ```text
//! seller <how the stock is kept> <url> <stock> <journal> <name> <seed> <tasks> <largest order> <hold from ms> <hold to ms>
//! ```
//!
//! It says `ready`, starts at the line `go`, stops at the next line or at the end of its input, and
//! says `done <orders>`.
#![allow(clippy::print_stdout, reason = "answers go to stdout")]

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use lock_tests::dice::Dice;
use lock_tests::stocks::{Habits, Journal, Kept, Seller};

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [kept, url, stock, journal, name, numbers @ ..] = args.as_slice() else {
        println!("!ten arguments are needed: {args:?}");
        return;
    };
    let numbers: Vec<u64> = numbers.iter().map(|text| text.parse().expect("a number")).collect();
    let &[seed, tasks, most, from, to] = numbers.as_slice() else {
        println!("!five numbers are needed: {numbers:?}");
        return;
    };
    let kept = Kept::named(kept).expect("stocks are kept in some way");
    let stock = kept.connect(url).await.stock(stock).timeout(Duration::from_secs(1));
    let journal = Arc::new(Journal::open(Path::new(journal)).expect("the journal can be opened"));
    let hold = (Duration::from_millis(from), Duration::from_millis(to));
    let seller = Seller { stock, name: name.clone(), habits: Habits { tasks, most, hold }, journal };
    println!("ready");
    next_line();

    let over = Arc::new(AtomicBool::new(false));
    let selling = tokio::spawn({
        let over = Arc::clone(&over);
        async move { seller.sell(&Dice::new(seed), move || !over.load(Ordering::Relaxed)).await }
    });
    tokio::task::block_in_place(next_line);
    over.store(true, Ordering::Relaxed);
    match selling.await {
        Ok(orders) => println!("done {orders}"),
        Err(error) => println!("!{error}"),
    }
}

fn next_line() {
    std::io::stdin().read_line(&mut String::new()).expect("a line, or the end");
}
