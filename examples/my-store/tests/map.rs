//! The store of the guide's chapter *Write a store*: a map of this process. It passes the suite.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use lock_core::store::kit::{Clock, Tick};
use lock_core::store::*;
use lock_core::{FencingToken, LockKey, OwnerId};

type Answer<T> = BoxFuture<Result<T, StoreError>>;
type Rows = HashMap<LockKey, Row>;

#[derive(Clone, Debug)]
struct MapStore(Arc<Mutex<Rows>>, Clock);

#[derive(Debug)]
struct Row {
    holder: Option<OwnerId>,
    until: Tick,
    token: u64,
}

/// Makes one atomic step, when the call is polled.
fn step<T: Send + 'static>(
    MapStore(rows, clock): &MapStore,
    step: impl FnOnce(&mut Rows, Tick) -> Result<T, StoreError> + Send + 'static,
) -> Answer<T> {
    let (rows, clock) = (rows.clone(), *clock);
    Box::pin(async move { step(&mut rows.lock().unwrap(), clock.now()) })
}

/// Returns the row of the key, without a holder whose lease is over.
fn row<'a>(rows: &'a mut Rows, key: &LockKey, now: Tick) -> &'a mut Row {
    let row = rows.entry(key.clone()).or_insert(Row { holder: None, until: now, token: 0 });
    row.holder = row.holder.take().filter(|_| row.until > now);
    row
}

/// Frees the key if this owner holds it.
fn free(rows: &mut Rows, Item { key, owner, .. }: &Item, now: Tick) -> bool {
    row(rows, key, now).holder.take_if(|holder| holder == owner).is_some()
}

/// Returns the time of the store, which begins in 2023.
fn time(now: Tick) -> ServerTime {
    ServerTime::from_micros(1_700_000_000_000_000 + now.as_nanos() / 1000)
}

impl LockStore for MapStore {
    fn abilities(&self) -> &Abilities {
        &Abilities::MUTEX
    }

    fn acquire(&self, request: Arc<AcquireRequest>) -> Answer<Acquired> {
        step(self, move |rows, now| {
            Abilities::MUTEX.allow(&request)?;
            let (Item { key, owner, .. }, latest) = (&request.items[0], request.stamp(time(now)));
            if time(now) > latest {
                return Err(StoreError::new(StoreErrorKind::TooLate, "the request came too late"));
            }
            let row = row(rows, key, now);
            match &row.holder {
                None => row.until = now,
                Some(holder) if holder == owner => {} // sent again
                _ => return Ok(Acquired::Busy(Busy::until(Some(row.until.since(now)), time(now)))),
            }
            row.holder = Some(owner.clone());
            row.until = row.until.max(now + request.lease);
            row.token = row.token.max(time(now).as_micros()) + u64::from(request.tokens);
            Ok(Acquired::Granted(Granted::one(row.token, request.tokens, time(now))))
        })
    }

    fn release(&self, request: Arc<ReleaseRequest>) -> Answer<Released> {
        step(self, move |rows, now| match request.linger.is_zero() {
            true => Ok(Released::one(free(rows, &request.items[0], now))),
            false => Err(Abilities::MUTEX.refusal(Lacked::Shortens)),
        })
    }

    fn renew(&self, request: Arc<RenewRequest>) -> Answer<Vec<Renewed>> {
        step(self, move |rows, now| {
            let renew = |RenewItem { item, lease, .. }: &RenewItem| {
                let row = row(rows, &item.key, now);
                if row.holder.as_ref() != Some(&item.owner) {
                    return Renewed::Gone;
                }
                row.until = row.until.max(now + *lease);
                Renewed::Held
            };
            Ok(request.items.iter().map(renew).collect())
        })
    }

    fn withdraw(&self, request: Arc<AcquireRequest>) -> Answer<Withdrawn> {
        step(self, move |rows, now| {
            free(rows, &request.items[0], now);
            Ok(request.seal().map_or(Withdrawn::Settled, |latest| Withdrawn::by(latest, time(now))))
        })
    }

    fn status(&self, key: LockKey) -> Answer<LockStatus> {
        step(self, move |rows, now| {
            let Row { holder, until, token } = row(rows, &key, now);
            let held = |owner| LockStatus::held(Kind::Mutex, owner, Some(until.since(now)));
            let mut status = holder.clone().map_or(LockStatus::free(), held);
            status.last_token = Some(FencingToken::new(*token)).filter(|token| token.get() > 0);
            Ok(status)
        })
    }

    fn force_release(&self, key: LockKey) -> Answer<bool> {
        step(self, move |rows, now| Ok(row(rows, &key, now).holder.take().is_some()))
    }

    fn check(&self) -> Answer<()> {
        step(self, |_, _| Ok(()))
    }
}

async fn subject() -> Arc<MapStore> {
    Arc::new(MapStore(Arc::default(), Clock::tokio()))
}

lock_store_conformance::conformance!(subject, start_paused = true);
