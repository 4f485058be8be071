//! The effects of administrators, restarts and full memory on a lock: while it is held, while it is
//! waited for, and before it is released. The outcomes are those of the table in
//! `docs/book/src/guarantees.md`.

use std::time::Duration;

use lock_runtime::{FencingToken, LockError, LockGuard, LockManager, LockManagerBuilder, Loss};
use lock_tests::redis::Data;
use lock_tests::{Layout, RedisServer, eventually};
use tokio::task::JoinHandle;
use tokio::time::Instant;

/// Lease that needs no renewal, and wait that does not end.
const LONG: Duration = Duration::from_secs(120);
/// Time-out for something quick, on a busy machine.
const SLACK: Duration = Duration::from_secs(40);

const LOCK: &str = "lock:k";
const DATA: &str = "somebody's data";

/// Returns the names of the lock's counter and of its channel.
fn names(layout: Layout) -> [&'static str; 2] {
    match layout {
        Layout::Hash => ["redisson_lock_token:{lock:k}", "redisson_lock__channel:{lock:k}"],
        Layout::Plain => ["lock_plain_tokens:lock:", "lock_plain_channel:{lock:k}"],
    }
}

/// Returns the layout in which [`DATA`] is written, and which is foreign to this one.
fn foreign(layout: Layout) -> Layout {
    if layout == Layout::Hash { Layout::Plain } else { Layout::Hash }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Event {
    RestartWithData,
    RestartWithoutData,
    Flush,
    ScriptFlush,
    KillSubscribers,
    KillClients,
    Delete,
    Overwrite,
    Evict,
    ForbidChannels,
}

/// The fate of a lock that is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    /// It is held as before; waiters get in when it is released.
    Kept,
    /// Its holder learns of it at its next renewal or release; a waiter gets in at its next check.
    Gone,
    /// As above, but waiters get an error that says what must be fixed.
    Foreign,
}

impl Event {
    fn outcome(self) -> Outcome {
        match self {
            Self::RestartWithData
            | Self::ScriptFlush
            | Self::KillSubscribers
            | Self::KillClients
            | Self::ForbidChannels => Outcome::Kept,
            Self::RestartWithoutData | Self::Flush | Self::Delete | Self::Evict => Outcome::Gone,
            Self::Overwrite => Outcome::Foreign,
        }
    }

    /// Makes the event happen, and makes sure that it has.
    async fn happen(self, server: &mut RedisServer, layout: Layout) {
        match self {
            Self::RestartWithData => {
                server.restart(Data::Kept);
                assert_eq!(server.cli(&["EXISTS", LOCK, names(layout)[0]]), "2");
            }
            Self::RestartWithoutData => server.restart(Data::Lost),
            Self::Flush => assert_eq!(server.cli(&["FLUSHALL"]), "OK"),
            Self::ScriptFlush => {
                assert!(!server.cli(&["INFO", "memory"]).contains("number_of_cached_scripts:0"));
                assert_eq!(server.cli(&["SCRIPT", "FLUSH"]), "OK");
            }
            Self::KillSubscribers => assert_eq!(server.cli(&["CLIENT", "KILL", "TYPE", "pubsub"]), "1"),
            Self::KillClients => {
                let killed = server.cli(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
                assert!(killed.parse::<u64>().unwrap() >= 2, "both managers have one: {killed}");
            }
            Self::Delete => assert_eq!(server.cli(&["DEL", LOCK]), "1"),
            Self::Overwrite if layout == Layout::Hash => {
                assert_eq!(server.cli(&["SET", LOCK, DATA]), "OK");
            }
            Self::Overwrite => {
                let script = "redis.call('DEL', KEYS[1]) return redis.call('HSET', KEYS[1], ARGV[1], '')";
                assert_eq!(server.cli(&["EVAL", script, "1", LOCK, DATA]), "1");
            }
            Self::Evict => evict(server, layout),
            Self::ForbidChannels => {
                // The server cuts off clients whose subscriptions are now forbidden.
                assert_eq!(server.cli(&["ACL", "SETUSER", "ann", "resetchannels"]), "OK");
                eventually(async || listeners(server, layout) == "0", SLACK).await;
            }
        }
    }
}

/// Returns the number of connections that have subscribed to the lock's channel.
fn listeners(server: &RedisServer, layout: Layout) -> String {
    server.cli(&["PUBSUB", "NUMSUB", names(layout)[1]]).lines().nth(1).unwrap_or_default().to_owned()
}

/// Limits memory, so that the server evicts keys, until the lock of the present owner is among
/// them.
fn evict(server: &RedisServer, layout: Layout) {
    let holder = layout.owner(server, LOCK);
    assert!(!holder.is_empty());
    let info = server.cli(&["INFO", "memory"]);
    let used = info.lines().find_map(|line| line.strip_prefix("used_memory:")).expect("it is told");
    let limit = used.trim().parse::<u64>().unwrap() + 8 * 1024 * 1024;
    server.cli(&["CONFIG", "SET", "maxmemory-policy", "allkeys-random", "maxmemory", &limit.to_string()]);
    let ballast = "x".repeat(1024 * 1024);
    let evicted = (0..2000).any(|n| {
        server.cli(&["SET", &format!("ballast:{n}"), &ballast]);
        layout.owner(server, LOCK) != holder
    });
    assert!(evicted);
    server.cli(&["CONFIG", "SET", "maxmemory-policy", "noeviction", "maxmemory", "0"]);
}

/// A server, a holder, and a manager that is like another process to the store.
struct Scene {
    server: RedisServer,
    layout: Layout,
    event: Event,
    holding: LockManager,
    other: LockManager,
}

impl Scene {
    async fn start(
        (layout, event): (Layout, Event),
        settings: impl Fn(LockManagerBuilder) -> LockManagerBuilder,
    ) -> Self {
        let server = RedisServer::start_with(&["--user", "ann", "on", ">hunter2", "~*", "&*", "+@all"]);
        let url = layout.url(&format!("redis://ann:hunter2@127.0.0.1:{}", server.port()));
        let builder = || {
            let builder = LockManager::builder()
                .call_timeout(SLACK / 2)
                .fallback_poll(Duration::from_secs(1))
                .subscription_linger(LONG);
            settings(builder).connect(&url)
        };
        let (holding, other) = (builder().await.unwrap(), builder().await.unwrap());
        Self { server, layout, event, holding, other }
    }

    /// Makes the other manager wait for the lock, and returns when it has subscribed to its
    /// releases.
    async fn waiter(&self) -> JoinHandle<Result<LockGuard, LockError>> {
        let other = self.other.clone();
        let waiter = tokio::spawn(async move { other.mutex("k").wait(LONG).acquire().await });
        eventually(async || listeners(&self.server, self.layout) == "1", SLACK).await;
        assert!(!waiter.is_finished());
        waiter
    }

    /// Makes the other manager wait and stop, so that its subscription lingers.
    async fn listener(&self) {
        let waiter = self.waiter().await;
        waiter.abort();
        assert!(waiter.await.is_err_and(|error| error.is_cancelled()));
    }

    async fn happen(&mut self) {
        self.event.happen(&mut self.server, self.layout).await;
        // A connection that was cut is made again by now, so later errors are not those of the cut.
        for locks in [&self.holding, &self.other] {
            eventually(async || locks.status("another").await.is_ok(), SLACK).await;
        }
    }

    /// Ends each test: foreign data is still there, and the next holder gets a larger token.
    async fn finish(self, highest: FencingToken) {
        if self.event.outcome() == Outcome::Foreign {
            let error = self.other.mutex("k").wait(LONG).acquire().await.unwrap_err();
            assert!(matches!(error, LockError::Misconfigured { .. }), "{error:?}");
            let error = self.other.force_release("k").await.unwrap_err();
            assert!(matches!(error, LockError::Misconfigured { .. }), "{error:?}");
            assert_eq!(foreign(self.layout).owner(&self.server, LOCK), DATA);
            self.server.cli(&["DEL", LOCK]);
        }
        let mut highest = highest;
        for locks in [&self.other, &self.holding] {
            let guard = locks.mutex("k").wait(LONG).acquire().await.unwrap();
            assert!(guard.fencing_token() > highest, "{} after {highest}", guard.fencing_token());
            highest = guard.fencing_token();
            guard.release().await.unwrap();
        }
        assert_eq!(self.server.cli(&["EXISTS", LOCK]), "0");
    }
}

/// Asserts that the holder is told why its lock is gone.
async fn assert_taken_away(guard: LockGuard) {
    let error = guard.release().await.unwrap_err();
    assert!(matches!(error, LockError::Lost { why: Loss::TakenAway, .. }), "{error:?}");
}

/// The holder learns of it at its next renewal, or goes on as if nothing had happened.
async fn while_held(layout: Layout, event: Event) {
    const LEASE: Duration = Duration::from_secs(12);
    let mut scene = Scene::start((layout, event), |builder| builder.lease(LEASE)).await;
    let guard = scene.holding.mutex("k").acquire().await.unwrap();
    let (acquired, token) = (Instant::now(), guard.fencing_token());
    scene.listener().await;
    scene.happen().await;
    match event.outcome() {
        Outcome::Kept => {
            let happened = acquired.elapsed();
            // Renewed since: more is left than a renewal before the event could have left.
            eventually(async || acquired.elapsed() + guard.remaining() > happened + LEASE, LEASE).await;
            assert!(!guard.is_lost());
            assert!(scene.other.mutex("k").try_acquire().await.unwrap().is_none());
            guard.release().await.unwrap();
        }
        Outcome::Gone | Outcome::Foreign => {
            tokio::time::timeout(SLACK, guard.lost()).await.expect("it is told");
            assert_taken_away(guard).await;
        }
    }
    scene.finish(token).await;
}

/// A waiter gets in when it may, although messages and polls were hindered meanwhile.
async fn while_waited_for(layout: Layout, event: Event) {
    let mut scene = Scene::start((layout, event), |builder| builder.lease(LONG)).await;
    let guard = scene.holding.mutex("k").acquire().await.unwrap();
    let token = guard.fencing_token();
    let waiter = scene.waiter().await;
    scene.happen().await;
    let start = Instant::now();
    let highest = match event.outcome() {
        Outcome::Kept => {
            assert!(!waiter.is_finished(), "it is held");
            assert!(!guard.is_lost());
            guard.release().await.unwrap();
            let next = waiter.await.unwrap().unwrap();
            assert!(next.fencing_token() > token);
            let highest = next.fencing_token();
            next.release().await.unwrap();
            highest
        }
        Outcome::Gone => {
            let next = waiter.await.unwrap().unwrap();
            assert!(next.fencing_token() > token, "{} after {token}", next.fencing_token());
            // The old holder's release touches nothing of the new one's.
            let owner = || layout.owner(&scene.server, LOCK);
            let held_by = owner();
            assert_taken_away(guard).await;
            assert_eq!(owner(), held_by);
            let highest = next.fencing_token();
            // If memory stayed short for a moment longer, it may have lost its lock too.
            if event == Event::Evict {
                drop(next.release().await);
            } else {
                next.release().await.unwrap();
            }
            highest
        }
        Outcome::Foreign => {
            let error = waiter.await.unwrap().unwrap_err();
            assert!(matches!(error, LockError::Misconfigured { .. }), "{error:?}");
            assert!(error.to_string().contains(LOCK), "{error}");
            assert_taken_away(guard).await;
            token
        }
    };
    assert!(start.elapsed() < SLACK, "{:?}", start.elapsed());
    scene.finish(highest).await;
}

/// The release reports what happened.
async fn at_release(layout: Layout, event: Event) {
    let mut scene = Scene::start((layout, event), |builder| builder.lease(LONG)).await;
    let guard = scene.holding.mutex("k").acquire().await.unwrap();
    let token = guard.fencing_token();
    scene.listener().await;
    scene.happen().await;
    assert!(!guard.is_lost(), "nobody has told it yet");
    match event.outcome() {
        Outcome::Kept => {
            guard.release().await.unwrap();
            assert_eq!(scene.server.cli(&["EXISTS", LOCK]), "0");
        }
        Outcome::Gone | Outcome::Foreign => assert_taken_away(guard).await,
    }
    scene.finish(token).await;
}

macro_rules! events {
    ($($name:ident: $event:ident,)*) => {
        $(
            mod $name {
                use lock_tests::Layout;

                use super::Event;

                async fn while_held(layout: Layout) {
                    super::while_held(layout, Event::$event).await;
                }

                async fn while_waited_for(layout: Layout) {
                    super::while_waited_for(layout, Event::$event).await;
                }

                async fn at_release(layout: Layout) {
                    super::at_release(layout, Event::$event).await;
                }

                lock_tests::on_every_layout! { async: while_held, while_waited_for, at_release }
            }
        )*
    };
}

events! {
    restart_with_data: RestartWithData,
    restart_without_data: RestartWithoutData,
    flush: Flush,
    script_flush: ScriptFlush,
    killed_subscribers: KillSubscribers,
    killed_clients: KillClients,
    deleted_key: Delete,
    overwritten_key: Overwrite,
    evicted_key: Evict,
    forbidden_channels: ForbidChannels,
}
