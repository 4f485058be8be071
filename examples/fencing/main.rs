//! A demonstration of the limits of a lock, and the purpose of its fencing tokens.
//!
//! Ann holds the lock of an account, has read the balance, and is paused for longer than her lease:
//! by a stopped container, a suspended machine, a slow disk. Meanwhile Ben rightly gets the lock.
//! Then Ann goes on where she was, and writes. No lock service can prevent that write. The account
//! can, if it refuses tokens smaller than the largest it has seen.
//!
//! ```text
//! cargo run --example fencing                                     # in memory
//! LOCK_URL=redis://127.0.0.1:6379 cargo run --example fencing     # on Redis
//! ```
#![allow(clippy::print_stdout, clippy::print_stderr)]

use std::error::Error;
use std::process::ExitCode;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use lock_runtime::{FencingToken, Lock, LockGuard, LockManager};
use sqlx::sqlite::{SqlitePool, SqlitePoolOptions};
use tokio::sync::oneshot;

type Result<T, E = Box<dyn Error + Send + Sync>> = std::result::Result<T, E>;

/// Ann's lease. It is fixed, so that it ends although only she is paused. A pause of the whole
/// process also stops the watchdog, with the same effect.
const LEASE: Duration = Duration::from_millis(500);

/// Time-out of each step, longer than one takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(30);

const START: i64 = 100;
const ANN_TAKES: i64 = 50;
const BEN_TAKES: i64 = 30;

/// How the account treats a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Account {
    /// It accepts every write.
    Trusting,
    /// It refuses a token smaller than the largest it has seen. An equal token belongs to the same
    /// grant, and is accepted.
    Checking,
}

impl Account {
    fn name(self) -> &'static str {
        match self {
            Self::Trusting => "trusting",
            Self::Checking => "checking",
        }
    }

    fn update(self) -> &'static str {
        match self {
            Self::Trusting => "UPDATE account SET balance = ?1, token = ?2 WHERE name = ?3",
            Self::Checking => "UPDATE account SET balance = ?1, token = ?2 WHERE name = ?3 AND token <= ?2",
        }
    }
}

/// The accounts, in SQLite.
#[derive(Clone, Debug)]
struct Bank(SqlitePool);

impl Bank {
    async fn open() -> Result<Self> {
        // A database in memory lives as long as its connection.
        let pool = SqlitePoolOptions::new().max_connections(1).idle_timeout(None).max_lifetime(None);
        let bank = Self(pool.connect("sqlite::memory:").await?);
        let table =
            "CREATE TABLE account (name TEXT PRIMARY KEY, balance INTEGER NOT NULL, token INTEGER NOT NULL)";
        sqlx::query(table).execute(&bank.0).await?;
        for account in [Account::Trusting, Account::Checking] {
            let insert = sqlx::query("INSERT INTO account VALUES (?, ?, 0)").bind(account.name()).bind(START);
            insert.execute(&bank.0).await?;
        }
        Ok(bank)
    }

    async fn balance(&self, account: Account) -> Result<i64> {
        let select = sqlx::query_scalar("SELECT balance FROM account WHERE name = ?").bind(account.name());
        Ok(select.fetch_one(&self.0).await?)
    }

    /// Writes the new balance; `false` if the account refuses it.
    async fn write(&self, account: Account, balance: i64, token: FencingToken) -> Result<bool> {
        // Tokens are below 2^53, so every database and every JSON parser can hold one.
        let token = i64::try_from(token.get())?;
        let update = sqlx::query(account.update()).bind(balance).bind(token).bind(account.name());
        Ok(update.execute(&self.0).await?.rows_affected() == 1)
    }
}

/// The state of an account at the end.
#[derive(Debug, PartialEq, Eq)]
struct Outcome {
    anns_lock_was_lost: bool,
    anns_late_write: Write,
    left: i64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Write {
    Accepted,
    Refused,
}

/// Plays Ann: gets the lock, reads, is paused until Ben is done, and writes.
async fn ann(
    bank: Bank,
    account: Account,
    lock: Lock,
    has_read: oneshot::Sender<()>,
    pause: mpsc::Receiver<()>,
) -> Result<(bool, Write)> {
    let guard = lock.lease(LEASE).acquire().await?;
    let balance = bank.balance(account).await?;
    say("Ann", &guard, &format!("reads {balance}, wants {ANN_TAKES}, and is paused"));
    let _ = has_read.send(());

    // This task stands still here, as a stopped process would.
    tokio::task::block_in_place(|| pause.recv_timeout(PATIENCE))?;

    let (lost, token) = (guard.is_lost(), guard.fencing_token());
    let write = if bank.write(account, balance - ANN_TAKES, token).await? {
        say("Ann", &guard, &format!("goes on and writes {}", balance - ANN_TAKES));
        Write::Accepted
    } else {
        say("Ann", &guard, &format!("goes on; her write of {} is refused", balance - ANN_TAKES));
        Write::Refused
    };
    if let Err(error) = guard.release().await {
        println!("   Ann  on release, too late to help: {error}");
    }
    Ok((lost, write))
}

/// Gets the lock, reads, writes, releases.
async fn take(who: &str, amount: i64, bank: &Bank, account: Account, lock: Lock) -> Result<()> {
    let asked = Instant::now();
    let guard = lock.wait(PATIENCE).acquire().await?;
    let waited = asked.elapsed().as_millis();
    let balance = bank.balance(account).await?;
    if !bank.write(account, balance - amount, guard.fencing_token()).await? {
        return Err(format!("{who} holds the lock and was refused").into());
    }
    let done = format!("waited {waited} ms, reads {balance}, takes {amount}, writes {}", balance - amount);
    say(who, &guard, &done);
    guard.release().await?;
    Ok(())
}

fn say(who: &str, guard: &LockGuard, what: &str) {
    println!("   {who}  token {}  {what}", guard.fencing_token());
}

async fn play(locks: &LockManager, bank: &Bank, account: Account) -> Result<Outcome> {
    // The table belongs to this process alone, so its lock does too.
    let lock = locks.mutex(format!("account:{}:{}", account.name(), locks.id()));
    let (has_read, may_start) = oneshot::channel();
    let (wake, pause) = mpsc::channel();
    let ann = tokio::spawn(ann(bank.clone(), account, lock.clone(), has_read, pause));
    may_start.await?;
    take("Ben", BEN_TAKES, bank, account, lock.clone()).await?;
    wake.send(())?;
    let (anns_lock_was_lost, anns_late_write) = ann.await??;
    if anns_late_write == Write::Refused {
        // A refused writer starts again, under a new lock.
        take("Ann", ANN_TAKES, bank, account, lock).await?;
    }
    Ok(Outcome { anns_lock_was_lost, anns_late_write, left: bank.balance(account).await? })
}

fn expected(account: Account) -> Outcome {
    match account {
        Account::Trusting => {
            Outcome { anns_lock_was_lost: true, anns_late_write: Write::Accepted, left: START - ANN_TAKES }
        }
        Account::Checking => Outcome {
            anns_lock_was_lost: true,
            anns_late_write: Write::Refused,
            left: START - ANN_TAKES - BEN_TAKES,
        },
    }
}

async fn run() -> Result<bool> {
    let locks = match std::env::var_os("LOCK_URL").filter(|url| !url.is_empty()) {
        Some(_) => LockManager::from_env().await?,
        None => LockManager::connect("memory:").await?,
    };
    let bank = Bank::open().await?;
    let mut good = true;
    for account in [Account::Trusting, Account::Checking] {
        println!("\nA {} account with {START} in it. {}", account.name(), account.update());
        let outcome = play(&locks, &bank, account).await?;
        let paid = ANN_TAKES + BEN_TAKES;
        let verdict = if outcome.left + paid == START { "right" } else { "money out of nothing" };
        println!("   {paid} was paid out, {} is left: {verdict}", outcome.left);
        if outcome != expected(account) {
            println!("   UNEXPECTED: {outcome:?} instead of {:?}", expected(account));
            good = false;
        }
    }
    locks.shutdown(PATIENCE).await?;
    Ok(good)
}

#[tokio::main]
async fn main() -> ExitCode {
    match run().await {
        Ok(true) => {
            println!("\nThe same lock, the same pause. The difference is `AND token <= ?`.");
            ExitCode::SUCCESS
        }
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(flavor = "multi_thread")]
    async fn only_the_account_that_checks_tokens_is_right() {
        let locks = LockManager::connect("memory:").await.unwrap();
        let bank = Bank::open().await.unwrap();
        for account in [Account::Trusting, Account::Checking] {
            assert_eq!(play(&locks, &bank, account).await.unwrap(), expected(account));
        }
    }

    #[tokio::test]
    async fn equal_tokens_are_accepted_and_smaller_ones_refused() {
        let bank = Bank::open().await.unwrap();
        let write = async |token| bank.write(Account::Checking, 1, FencingToken::new(token)).await.unwrap();
        assert!(write(34).await);
        assert!(write(34).await);
        assert!(!write(33).await);
        assert!(write(35).await);
    }
}
