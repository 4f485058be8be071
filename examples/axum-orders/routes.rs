//! The routes, the layers around them, and the handlers.

use std::time::Duration;

use axum::extract::{Path, State};
use axum::routing::{get, post, put};
use axum::{Json, Router, middleware};
use lock_runtime::layer::LockLayer;
use lock_runtime::layer::path_param;
use lock_runtime::{HeldLock, LockManager, distributed_lock};
use serde::{Deserialize, Serialize};

use crate::args::Journaling;
use crate::journal;
use crate::shop::{Order, Shop, ShopError, Stock};

#[derive(Clone, Debug)]
pub(crate) struct App {
    pub(crate) locks: LockManager,
    pub(crate) shop: Shop,
}

pub(crate) fn router(locks: LockManager, shop: Shop, journaling: Journaling) -> Router {
    // `parsed`: a handler that reads a number takes `7` and `007` for one order, so they need one
    // lock.
    let per_order = LockLayer::new(locks.clone(), path_param("id").prefix("order:").parsed::<u32>())
        // Limits how long a client that sends its body byte by byte holds the lock.
        .max_hold(Duration::from_secs(30))
        .name("order");
    // Everybody wants this item: a short wait, and no more in the queue than can be served in it.
    let per_item = LockLayer::new(locks.clone(), path_param("id").prefix("item:"))
        .wait(Duration::from_millis(250))
        .max_waiters_per_key(8)
        .max_waiters(100)
        .name("item");

    // Requests for the same order wait for each other …
    let orders = Router::new()
        .route("/orders/{id}/items", post(add_items))
        .route("/orders/{id}", get(read_order)) // GET is not locked
        .route_layer(middleware::from_fn_with_state((journaling, shop.clone()), journal::record))
        .route_layer(per_order.clone().wait(Duration::from_secs(5)));
    // … but a payment does not wait for an order in use: it gets 409 at once.
    let checkout = Router::new()
        .route("/orders/{id}/status", put(set_status))
        .route_layer(middleware::from_fn_with_state((journaling, shop.clone()), journal::record))
        .route_layer(per_order.no_wait());
    let items = Router::new()
        .route("/items/{id}/reserve", post(reserve))
        .route("/items/{id}", get(read_stock))
        .route_layer(per_item);
    orders.merge(checkout).merge(items).route("/journal", get(journal::peaks)).with_state(App { locks, shop })
}

#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct AddItems {
    pub(crate) quantity: u32,
}

/// Reads, works, and writes: without the lock, one of two concurrent updates would be lost.
async fn add_items(
    State(app): State<App>,
    Path(id): Path<u32>,
    held: HeldLock,
    Json(add): Json<AddItems>,
) -> Result<Json<Order>, ShopError> {
    let new = Order { id, items: 0, status: "open".to_owned(), token: 0 };
    let order = app.shop.order(id).await?.unwrap_or(new);
    app.shop.work().await;
    let items = order.items.checked_add(add.quantity).ok_or(ShopError::TooMany)?;
    Ok(Json(app.shop.write(Order { items, ..order }, held.fencing_token()).await?))
}

async fn read_order(State(app): State<App>, Path(id): Path<u32>) -> Result<Json<Order>, ShopError> {
    app.shop.order(id).await?.map(Json).ok_or(ShopError::Unknown("order"))
}

#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct SetStatus {
    pub(crate) status: String,
}

async fn set_status(
    State(app): State<App>,
    Path(id): Path<u32>,
    Json(set): Json<SetStatus>,
) -> Result<Json<Order>, ShopError> {
    change_status(&app, id, set.status).await.map(Json)
}

/// Takes the lock itself, since it is also called without a request, as by a nightly job. A handler
/// that already holds this lock re-enters it: no round trip, the same token.
#[distributed_lock(key = "order:<id>", wait = "5s", manager = app.locks, guard = held)]
async fn change_status(app: &App, id: u32, status: String) -> Result<Order, ShopError> {
    let order = app.shop.order(id).await?.ok_or(ShopError::Unknown("order"))?;
    app.shop.work().await;
    app.shop.write(Order { status, ..order }, held.fencing_token()).await
}

async fn reserve(
    State(app): State<App>,
    Path(item): Path<String>,
    held: HeldLock,
) -> Result<Json<Stock>, ShopError> {
    let stock = app.shop.stock(&item).await?;
    app.shop.work().await;
    let available = stock.available.checked_sub(1).ok_or(ShopError::SoldOut)?;
    Ok(Json(app.shop.write_stock(Stock { available, ..stock }, held.fencing_token()).await?))
}

async fn read_stock(State(app): State<App>, Path(item): Path<String>) -> Result<Json<Stock>, ShopError> {
    app.shop.stock(&item).await.map(Json)
}
