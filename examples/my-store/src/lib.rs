//! A complete store of mutexes, to copy from. This file is what the contract asks of any store;
//! `server` has the steps on Redis. The chapter *Write a store* of the guide explains both.

mod server;

use std::sync::Arc;
use std::time::Duration;

use lock_core::store::kit::{Clock, ServerClock, bounded};
use lock_core::store::{
    Abilities, AcquireRequest, Acquired, BoxFuture, Busy, Granted, Kind, Lacked, LockStatus, LockStore,
    ReleaseRequest, Released, RenewRequest, Renewed, ServerTime, StoreError, StoreErrorKind, Withdrawn,
};
use lock_core::{FencingToken, LockKey, OwnerId, TokenRetention};
use server::{Answer, Server};

const ABILITIES: Abilities = Abilities { name: "the example store", ..Abilities::MUTEX };

/// Time limit of the calls that bring none.
const LIMIT: Duration = Duration::from_secs(2);

/// Mutexes on a Redis server. Clones share a connection, which is made on first use.
#[derive(Clone, Debug)]
pub struct MyStore(Arc<Server>, Arc<ServerClock>);

impl MyStore {
    /// Creates a store on the server of `client`, whose names begin with `prefix`.
    ///
    /// # Errors
    ///
    /// When the client can't be used with tokio.
    pub fn new(client: redis::Client, prefix: &str) -> redis::RedisResult<Self> {
        Ok(Self(Arc::new(Server::new(client, prefix.to_owned())?), Arc::default()))
    }
}

impl LockStore for MyStore {
    fn abilities(&self) -> &Abilities {
        &ABILITIES
    }

    fn acquire(&self, request: Arc<AcquireRequest>) -> BoxFuture<Result<Acquired, StoreError>> {
        let Self(server, clock) = self.clone();
        Box::pin(bounded(request.timeout, async move {
            ABILITIES.allow(&request)?;
            let item = &request.items[0];
            let sent = Clock::Boot.now();
            let estimate = match clock.estimate(sent) {
                Some(estimate) => estimate,
                None => ask(&server, &clock).await?,
            };
            let (latest, life) = (request.stamp(estimate), life(request.retention));
            let (answer, now) = server.acquire(item, latest, request.lease, request.tokens, life).await?;
            clock.observe(now, sent);
            match answer {
                Answer::Granted(last) => Ok(Acquired::Granted(Granted::one(last, request.tokens, now))),
                Answer::Busy(remaining) => Ok(Acquired::Busy(Busy::until(remaining, now))),
                Answer::Late => Err(StoreError::new(StoreErrorKind::TooLate, "the request came too late")),
            }
        }))
    }

    fn release(&self, request: Arc<ReleaseRequest>) -> BoxFuture<Result<Released, StoreError>> {
        let Self(server, _) = self.clone();
        Box::pin(bounded(request.timeout, async move {
            if !request.linger.is_zero() {
                return Err(ABILITIES.refusal(Lacked::Shortens));
            }
            let (held, _) = server.release(&request.items[0]).await?;
            Ok(Released::one(held))
        }))
    }

    fn renew(&self, request: Arc<RenewRequest>) -> BoxFuture<Result<Vec<Renewed>, StoreError>> {
        let Self(server, _) = self.clone();
        Box::pin(bounded(request.timeout, async move {
            let holds = request.items.iter().map(|hold| (&hold.item, hold.lease, life(hold.retention)));
            let renewed = |held| if held { Renewed::Held } else { Renewed::Gone };
            let answers = server.renew(holds).await?.into_iter();
            Ok(answers.map(|answer| answer.map_or(Renewed::Unknown, renewed)).collect())
        }))
    }

    fn withdraw(&self, request: Arc<AcquireRequest>) -> BoxFuture<Result<Withdrawn, StoreError>> {
        let Self(server, _) = self.clone();
        Box::pin(bounded(request.timeout, async move {
            let Some(latest) = request.seal() else { return Ok(Withdrawn::Settled) };
            let (_, now) = server.release(&request.items[0]).await?;
            Ok(Withdrawn::by(latest, now))
        }))
    }

    fn status(&self, key: LockKey) -> BoxFuture<Result<LockStatus, StoreError>> {
        let Self(server, _) = self.clone();
        Box::pin(bounded(LIMIT, async move {
            let (owner, remaining, token) = server.look(&key).await?;
            let held = |owner| LockStatus::held(Kind::Mutex, OwnerId::new(owner), remaining);
            let mut status = owner.map_or(LockStatus::free(), held);
            status.last_token = token.map(FencingToken::new);
            Ok(status)
        }))
    }

    fn force_release(&self, key: LockKey) -> BoxFuture<Result<bool, StoreError>> {
        let Self(server, _) = self.clone();
        Box::pin(bounded(LIMIT, async move { server.free(&key).await }))
    }

    fn check(&self) -> BoxFuture<Result<(), StoreError>> {
        let Self(server, clock) = self.clone();
        Box::pin(bounded(LIMIT, async move { ask(&server, &clock).await.map(drop) }))
    }
}

/// Asks for the server's time, from which the clock goes on.
async fn ask(server: &Server, clock: &ServerClock) -> Result<ServerTime, StoreError> {
    let sent = Clock::Boot.now();
    let now = server.time().await?;
    clock.observe(now, sent);
    Ok(now)
}

/// Returns how long a counter outlives its lock. A thousand years are forever.
fn life(retention: TokenRetention) -> Duration {
    match retention {
        TokenRetention::For(time) => time,
        TokenRetention::Keep => Duration::from_secs(1000 * 366 * 24 * 3600),
    }
}
