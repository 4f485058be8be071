//! The requests that enter and leave handlers, in all instances, in the order in which the database
//! saw it.
//!
//! It is only for the load run: a handler that is dropped, or whose process is killed, never
//! leaves.

use std::collections::HashMap;

use axum::Json;
use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::Response;
use lock_runtime::HeldLock;
use serde::{Deserialize, Serialize};
use sqlx::SqlitePool;

use crate::args::Journaling;
use crate::routes::App;
use crate::shop::{Shop, ShopError};

const TABLE: &str =
    "CREATE TABLE IF NOT EXISTS journal (number INTEGER PRIMARY KEY AUTOINCREMENT, key TEXT, step INTEGER)";

pub(crate) async fn open(pool: &SqlitePool) -> Result<(), ShopError> {
    sqlx::query(TABLE).execute(pool).await?;
    Ok(())
}

/// Records entry and exit, around the handlers and inside the lock.
pub(crate) async fn record(
    State((journaling, shop)): State<(Journaling, Shop)>,
    request: Request,
    next: Next,
) -> Result<Response, ShopError> {
    let held = request.extensions().get::<HeldLock>().cloned();
    let Some(held) = held.filter(|_| journaling == Journaling::On) else {
        return Ok(next.run(request).await);
    };
    let key = held.key().to_string();
    note(&shop, &key, 1).await?;
    let response = next.run(request).await;
    note(&shop, &key, -1).await?;
    Ok(response)
}

async fn note(shop: &Shop, key: &str, step: i64) -> Result<(), ShopError> {
    let insert = sqlx::query("INSERT INTO journal (key, step) VALUES (?, ?)").bind(key).bind(step);
    insert.execute(&shop.pool).await?;
    Ok(())
}

/// Maximum numbers of requests in handlers at the same time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Peaks {
    /// Maximum for any one order.
    pub(crate) of_one_order: i64,
    /// Maximum for all orders together.
    pub(crate) of_all: i64,
}

pub(crate) async fn peaks(State(app): State<App>) -> Result<Json<Peaks>, ShopError> {
    let select = sqlx::query_as("SELECT key, step FROM journal ORDER BY number");
    match select.fetch_all(&app.shop.pool).await {
        Ok(steps) => Ok(Json(count(steps))),
        Err(sqlx::Error::Database(_)) => Err(ShopError::Unknown("journal: start the server with --journal")),
        Err(error) => Err(error.into()),
    }
}

fn count(steps: Vec<(String, i64)>) -> Peaks {
    let (mut inside, mut inside_all) = (HashMap::<String, i64>::new(), 0);
    let mut peaks = Peaks::default();
    for (key, step) in steps {
        let inside = inside.entry(key).or_default();
        *inside += step;
        inside_all += step;
        peaks.of_one_order = peaks.of_one_order.max(*inside);
        peaks.of_all = peaks.of_all.max(inside_all);
    }
    peaks
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_in_one_order_are_told_from_two_in_two() {
        let steps =
            |steps: &[(&str, i64)]| steps.iter().map(|(key, step)| ((*key).to_owned(), *step)).collect();
        let apart = count(steps(&[("a", 1), ("b", 1), ("a", -1), ("a", 1), ("b", -1), ("a", -1)]));
        assert_eq!(apart, Peaks { of_one_order: 1, of_all: 2 });
        let together = count(steps(&[("a", 1), ("a", 1), ("a", -1), ("a", -1)]));
        assert_eq!(together, Peaks { of_one_order: 2, of_all: 2 });
    }
}
