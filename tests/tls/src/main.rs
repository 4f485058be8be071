//! Takes the lock `k` twice at the URL that it is given, and prints both tokens; an error begins
//! with `!`. A process of its own, since TLS libraries read the environment.
#![allow(clippy::print_stdout, reason = "the test reads it")]

use lock_runtime::{LockError, LockManager};

#[tokio::main]
async fn main() {
    let url = std::env::args().nth(1).unwrap_or_default();
    match LockManager::connect(url).await {
        Err(error) => println!("!can't connect: {error}"),
        Ok(locks) => {
            if let Err(error) = lock_twice(&locks).await {
                println!("!{error}");
            }
        }
    }
}

async fn lock_twice(locks: &LockManager) -> Result<(), LockError> {
    for _ in 0..2 {
        let guard = locks.mutex("k").acquire().await?;
        println!("{}", guard.fencing_token());
        guard.release().await?;
    }
    Ok(())
}
