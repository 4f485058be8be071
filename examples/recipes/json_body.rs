//! # A lock per request, with the key from a JSON body
//!
//! `POST /charges` has the account in its body: `{"account": 7, "amount": 100}`. Charges of one
//! account must not overlap, in all instances of the service together.
//!
//! **Copy** `per_account`, and the `route_layer` in `app`. The layer reads the body, takes the
//! lock, and passes the body on to the handler.
//!
//! **Watch**
//! - Choose the limit of the body, since the layer keeps it in memory. A longer body gets 413.
//! - Parse the key into its type. Clients must not choose its text freely: braces in it would
//!   choose the slot in a cluster.
//! - The layer answers requests that don't get their lock, with `Retry-After`: 429 after the wait,
//!   503 if the store is down.
//! - A key in the path, a header or the query needs no body: use `LockLayer::new` with
//!   `path_param`, `header` or `query`.
#![allow(clippy::print_stdout)]

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Result, bail, ensure};
use axum::http::request::Parts;
use axum::{Json, Router, extract::State, routing::post};
use lock_runtime::layer::{LockLayer, Rejection, body};
use lock_runtime::{HeldLock, LockManager};
use serde::Deserialize;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

/// The sum that each account has paid; it stands for a database.
type Accounts = Arc<Mutex<HashMap<u32, u32>>>;

#[derive(Deserialize)]
struct Charge {
    account: u32,
    amount: u32,
}

fn per_account(_head: &Parts, body: &[u8]) -> Result<String, Rejection> {
    let charge: Charge = serde_json::from_slice(body)
        .map_err(|_| Rejection::new("The body is not an account and an amount in JSON."))?;
    Ok(format!("account:{}", charge.account))
}

fn app(locks: LockManager, accounts: Accounts) -> Router {
    let layer = LockLayer::new_async(locks, body(16 * 1024, per_account)).wait(Duration::from_secs(5));
    Router::new().route("/charges", post(charge)).route_layer(layer).with_state(accounts)
}

/// Reads, works, and writes. Without the lock, one of two charges at once would be lost.
async fn charge(State(accounts): State<Accounts>, held: HeldLock, Json(charge): Json<Charge>) -> String {
    let paid = accounts.lock().unwrap_or_else(PoisonError::into_inner).get(&charge.account).copied();
    tokio::time::sleep(Duration::from_millis(5)).await; // asks the bank
    let paid = paid.unwrap_or(0).saturating_add(charge.amount);
    accounts.lock().unwrap_or_else(PoisonError::into_inner).insert(charge.account, paid);
    format!("paid {paid}, token {}", held.fencing_token())
}

/// Sends a request, and returns the whole answer.
async fn send(address: SocketAddr, json: &str) -> Result<String> {
    let mut socket = TcpStream::connect(address).await?;
    let head =
        "POST /charges HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-type: application/json";
    let length = json.len();
    socket.write_all(format!("{head}\r\ncontent-length: {length}\r\n\r\n{json}").as_bytes()).await?;
    let mut answer = String::new();
    socket.read_to_string(&mut answer).await?;
    Ok(answer)
}

#[tokio::main]
async fn main() -> Result<()> {
    let url = std::env::var("LOCK_URL").unwrap_or_else(|_| "memory:".to_owned());
    let (locks, accounts) = (LockManager::connect(url).await?, Accounts::default());
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let (address, app) = (listener.local_addr()?, app(locks.clone(), Arc::clone(&accounts)));
    tokio::spawn(async { axum::serve(listener, app).await });

    let mut requests = JoinSet::new();
    for _ in 0..20 {
        requests.spawn(send(address, r#"{"account": 7, "amount": 1}"#));
    }
    for answer in requests.join_all().await {
        let answer = answer?;
        ensure!(answer.starts_with("HTTP/1.1 200"), "a charge was refused: {answer}");
    }
    let paid = accounts.lock().unwrap_or_else(PoisonError::into_inner).get(&7).copied();
    println!("20 charges at once have paid {}", paid.unwrap_or_default());
    let refused = send(address, r#"{"amount": 1}"#).await?;
    println!("a charge without an account: {}", refused.lines().next().unwrap_or_default());
    locks.shutdown(Duration::from_secs(5)).await?;
    match (paid, refused.starts_with("HTTP/1.1 400")) {
        (Some(20), true) => Ok(()),
        _ => bail!("expected 20 paid, and status 400"),
    }
}
