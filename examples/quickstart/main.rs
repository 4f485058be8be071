//! A hundred requests at once over ten orders, each through a function with `#[distributed_lock]`
//! on it.
//!
//! The body of that function is a race on purpose: it reads an order, waits, and writes the order
//! back. Without the lock nearly every payment is overwritten by another; with it none is, however
//! many processes there are.
//!
//! ```text
//! cargo run --example quickstart                                     # in memory
//! LOCK_URL=redis://127.0.0.1:6379 cargo run --example quickstart     # on Redis; start two of them at once
//! cargo xtask servers cluster                                        # prints a LOCK_URL; or single, sentinel, quorum
//! LOCK_URL=sqlite:locks.db cargo run --example quickstart --features sqlite    # or postgres, mysql
//! ```
//!
//! The exit status is 1 if anything was not as it should be.
#![allow(clippy::print_stdout)]

mod orders;
mod summary;

use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use lock_runtime::{FencingToken, LockError, LockManager, distributed_lock, set_default};
use orders::{Orders, Payment, Receipt, ShopError, check, lost};
use summary::Summary;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::sleep;

const ORDERS: usize = 10;
const REQUESTS: usize = 100;

/// Delay between reading an order and writing it, enough for another request to read the same.
const THINKING: Duration = Duration::from_millis(20);

/// Adds a payment to an order.
#[distributed_lock(key = "quickstart:order:<id>", wait = "30s", guard = lock)]
async fn pay(orders: &Orders, id: &str, operation: String, asked: Instant) -> Result<Receipt, ShopError> {
    let (waited, token) = (asked.elapsed(), lock.fencing_token());
    let mut order = orders.read(id).await?;
    sleep(THINKING).await;
    order.push(Payment { operation: operation.clone(), token });
    orders.write(id, &order).await?;
    Ok(Receipt { operation, token, waited })
}

/// Has the same body without the attribute, to show what the lock prevents.
async fn pay_without_lock(orders: &Orders, id: &str, operation: String) -> Result<Receipt, ShopError> {
    let (waited, token) = (Duration::ZERO, FencingToken::new(0));
    let mut order = orders.read(id).await?;
    sleep(THINKING).await;
    order.push(Payment { operation: operation.clone(), token });
    orders.write(id, &order).await?;
    Ok(Receipt { operation, token, waited })
}

/// Checks that the order has every payment of this process, and removes them. Payments of other
/// processes stay. Returns the problems found.
#[distributed_lock(key = "quickstart:order:<id>", wait = "30s")]
async fn settle(orders: &Orders, id: &str, receipts: &[Receipt]) -> Result<Vec<String>, ShopError> {
    let mut order = orders.read(id).await?;
    let problems = check(&order, receipts);
    order.retain(|payment| receipts.iter().all(|receipt| receipt.operation != payment.operation));
    orders.write(id, &order).await?;
    Ok(problems)
}

/// Works without an end, one at a time. A second caller does not wait for the first.
#[distributed_lock(key = "quickstart:report:<run>", wait = "none")]
async fn report(run: &str, steps: &watch::Sender<u32>) -> Result<(), LockError> {
    loop {
        steps.send_modify(|steps| *steps += 1);
        sleep(THINKING).await;
    }
}

#[tokio::main]
async fn main() -> ExitCode {
    let mut summary = Summary::default();
    if let Err(error) = run(&mut summary).await {
        summary.note("the example ran to its end", Err(error.to_string()));
    }
    println!("\n{summary}");
    if summary.is_good() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

async fn run(summary: &mut Summary) -> Result<(), Box<dyn std::error::Error>> {
    let url = std::env::var("LOCK_URL").ok().filter(|url| !url.is_empty());
    let locks = match &url {
        Some(_) => LockManager::from_env().await.map_err(|error| {
            format!(
                "{error}\n       Is the server at LOCK_URL running? Without LOCK_URL everything is in memory."
            )
        })?,
        None => LockManager::connect("memory:").await?,
    };
    // The manager that the attribute uses by default.
    set_default(locks.clone());
    let orders = Arc::new(Orders::open(url.as_deref())?);
    println!("quickstart, {orders}");

    a_hundred_requests(&orders, locks.id(), summary).await?;
    without_the_lock(&orders, locks.id(), summary).await?;
    busy_and_lost(&locks, summary).await?;
    nothing_left(&locks, summary).await?;
    locks.shutdown(Duration::from_secs(5)).await?;
    Ok(())
}

fn order_ids() -> Vec<String> {
    (1..=ORDERS).map(|number| number.to_string()).collect()
}

/// Pays a hundred times at once, then checks that every payment has arrived.
async fn a_hundred_requests(orders: &Arc<Orders>, run: &str, summary: &mut Summary) -> Result<(), ShopError> {
    println!(
        "\n{REQUESTS} requests at once over {ORDERS} orders; each reads, waits {THINKING:?}, and writes"
    );
    let mut requests = JoinSet::new();
    let asked = Instant::now();
    for (number, id) in (0..REQUESTS).zip(order_ids().into_iter().cycle()) {
        let (orders, operation) = (Arc::clone(orders), format!("{run}/{number}"));
        requests.spawn(async move {
            let receipt = pay(&orders, &id, operation, asked).await?;
            Ok::<_, ShopError>((id, receipt))
        });
    }
    let paid: Vec<(String, Receipt)> = requests.join_all().await.into_iter().collect::<Result<_, _>>()?;
    println!("   done after {:.2} s", asked.elapsed().as_secs_f64());

    println!("   order  payments  longest wait  fencing tokens");
    let mut problems = Vec::new();
    let mut longest = Duration::ZERO;
    for id in order_ids() {
        let of_this = paid.iter().filter(|(order, _)| *order == id).map(|(_, receipt)| receipt.clone());
        let receipts: Vec<Receipt> = of_this.collect();
        let tokens = || receipts.iter().map(|receipt| receipt.token.get());
        let waited = receipts.iter().map(|receipt| receipt.waited).max().unwrap_or_default();
        longest = longest.max(waited);
        println!(
            "   {id:>5}  {:>8}  {:>9} ms  {} to {}",
            receipts.len(),
            waited.as_millis(),
            tokens().min().unwrap_or_default(),
            tokens().max().unwrap_or_default(),
        );
        problems.extend(settle(orders, &id, &receipts).await?);
    }
    summary.note("every payment is there exactly once, in the order of the fencing tokens", none(&problems));
    // The last request for an order waits for all the others.
    let queue = THINKING * u32::try_from(REQUESTS / ORDERS - 1).unwrap_or(0);
    let waited = if longest >= queue { Ok(()) } else { Err(format!("{longest:?} at most")) };
    summary.note("requests for one order waited for each other", waited);
    Ok(())
}

/// Shows the same race without the lock: if no payment is lost here, the check above means nothing.
async fn without_the_lock(orders: &Orders, run: &str, summary: &mut Summary) -> Result<(), ShopError> {
    let id = format!("unlocked:{run}");
    let pay = |number: u32| pay_without_lock(orders, &id, number.to_string());
    let (first, second, third, fourth) = tokio::join!(pay(1), pay(2), pay(3), pay(4));
    let receipts = [first?, second?, third?, fourth?];
    let lost = lost(&orders.read(&id).await?, &receipts);
    orders.write(&id, &[]).await?;
    println!("\n{} requests at once through the same body without the lock", receipts.len());
    println!("   payments lost: {lost}");
    let noticed = if lost > 0 { Ok(()) } else { Err("nothing was lost".to_owned()) };
    summary.note("without the lock payments are lost", noticed);
    Ok(())
}

/// Asks for a lock that is held, then takes it away from its holder.
async fn busy_and_lost(locks: &LockManager, summary: &mut Summary) -> Result<(), Box<dyn std::error::Error>> {
    let run = locks.id().to_owned();
    let steps = Arc::new(watch::Sender::new(0));
    let first = tokio::spawn({
        let (run, steps) = (run.clone(), Arc::clone(&steps));
        async move { report(&run, &steps).await }
    });
    steps.subscribe().wait_for(|&steps| steps >= 3).await?;

    println!("\na report is running, and a second one is asked for");
    let second = report(&run, &steps).await;
    summary.note("a second report is refused as busy", expect(second, LockError::is_busy));

    println!("an operator frees the key while the first report is running");
    let freed = Instant::now();
    locks.force_release(format!("quickstart:report:{run}")).await?;
    let first = first.await?;
    let took = freed.elapsed();
    let is_lost = |error: &LockError| matches!(error, LockError::Lost { .. }) && error.body_started();
    summary.note("the report that lost its lock was cancelled", expect(first, is_lost));

    let done = *steps.borrow();
    sleep(THINKING * 5).await;
    let more = *steps.borrow() - done;
    println!("   the body was dropped {:.1} ms later, after {done} steps", took.as_secs_f64() * 1e3);
    let still = if more == 0 { Ok(()) } else { Err(format!("{more} more steps")) };
    summary.note("its body went no further", still);
    Ok(())
}

/// Prints the error, and checks whether it is the right one.
fn expect(result: Result<(), LockError>, right: impl Fn(&LockError) -> bool) -> Result<(), String> {
    match result {
        Err(error) => {
            println!("   {error}");
            if right(&error) { Ok(()) } else { Err(error.to_string()) }
        }
        Ok(()) => Err("no error".to_owned()),
    }
}

/// Checks that this process holds none of the keys. Another process may still use the same orders.
async fn nothing_left(locks: &LockManager, summary: &mut Summary) -> Result<(), LockError> {
    let mut keys: Vec<String> = order_ids().iter().map(|id| format!("quickstart:order:{id}")).collect();
    keys.push(format!("quickstart:report:{}", locks.id()));
    let mut left = Vec::new();
    for key in keys {
        let status = locks.status(&key).await?;
        if status.holders.iter().any(|(owner, _)| owner.as_str().starts_with(locks.id())) {
            left.push(key);
        }
    }
    summary.note("no lock is left behind", none(&left));
    Ok(())
}

fn none(problems: &[String]) -> Result<(), String> {
    if problems.is_empty() { Ok(()) } else { Err(problems.join("; ")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_whole_program_is_right_in_memory() {
        let locks = LockManager::connect("memory:").await.unwrap();
        set_default(locks.clone());
        let orders = Arc::new(Orders::open(None).unwrap());
        let mut summary = Summary::default();
        a_hundred_requests(&orders, locks.id(), &mut summary).await.unwrap();
        without_the_lock(&orders, locks.id(), &mut summary).await.unwrap();
        busy_and_lost(&locks, &mut summary).await.unwrap();
        nothing_left(&locks, &mut summary).await.unwrap();
        assert!(summary.is_good(), "{summary}");
        assert!(orders.is_empty(), "data left behind");
    }

    #[tokio::test]
    async fn the_check_notices_payments_made_without_the_lock() {
        let orders = Orders::open(None).unwrap();
        let pay = |number: u32| pay_without_lock(&orders, "1", number.to_string());
        let (first, second) = tokio::join!(pay(1), pay(2));
        let problems = check(&orders.read("1").await.unwrap(), &[first.unwrap(), second.unwrap()]);
        assert!(matches!(problems.as_slice(), [problem] if problem.ends_with("is lost")), "{problems:?}");
    }
}
