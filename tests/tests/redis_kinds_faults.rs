//! Locks of all kinds when others reach into the server's data, when it forgets, refuses or restarts, when messages are
//! lost, and when whoever asks goes away.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use lock_runtime::{AcquireError, Lock, LockGuard, LockManager, MultiKey, testing};
use lock_tests::proxy::{Fault, Line, Proxy, Way};
use lock_tests::redis::Data;
use lock_tests::{RedisServer, eventually, first_poll};
use tokio::task::JoinSet;
use tokio::time::Instant;

/// The lease of locks that must be freed by somebody, since they don't end by themselves within [`SLACK`].
const LONG: Duration = Duration::from_secs(120);
/// What takes a moment may take so long on a busy machine.
const SLACK: Duration = Duration::from_secs(40);

const fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

const KINDS: [&str; 5] = ["mutex", "fair", "read", "write", "multi"];

fn lock_of(locks: &LockManager, kind: &str, key: &str) -> Lock {
    match kind {
        "mutex" => locks.mutex(key),
        "fair" => locks.fair(key),
        "read" => locks.read(key),
        "write" => locks.write(key),
        _ => locks.multi([
            MultiKey::fair(format!("{key}:f")),
            MultiKey::mutex(key),
            MultiKey::write(format!("{key}:w")),
        ]),
    }
}

async fn manager(url: &str) -> LockManager {
    LockManager::builder().fallback_poll(ms(300)).subscription_linger(ms(100)).connect(url).await.unwrap()
}

/// Nothing but counters is on the server, and nobody listens.
async fn assert_nothing_is_left(server: &RedisServer, within: Duration) {
    let left = || {
        let keys = server.cli(&["KEYS", "*"]);
        let keys = keys.lines().filter(|key| !key.is_empty() && !key.starts_with("redisson_lock_token:"));
        keys.map(str::to_owned).collect::<Vec<_>>()
    };
    let start = Instant::now();
    while !left().is_empty() {
        assert!(start.elapsed() < within, "{:?}", left());
        tokio::time::sleep(ms(20)).await;
    }
}

async fn assert_idle(locks: &LockManager) {
    let quiet = || {
        let left = testing::leftovers(locks);
        (left.keys, left.timers, left.tasks) == (0, 0, 0)
    };
    let start = Instant::now();
    while !quiet() {
        assert!(start.elapsed() < SLACK, "{:?}", testing::leftovers(locks));
        tokio::time::sleep(ms(10)).await;
    }
}

async fn waiters(server: &RedisServer, key: &str, count: usize) {
    let queue = format!("redisson_lock_queue:{{lock:{key}}}");
    eventually(async || server.cli(&["LLEN", &queue]) == count.to_string(), SLACK).await;
}

fn fair_names(key: &str) -> [String; 3] {
    ["redisson_lock_queue", "redisson_lock_timeout", "lock_fair_alive"]
        .map(|name| format!("{name}:{{lock:{key}}}"))
}

/// Deletes the key of a command and carries it out, with nobody in between.
fn overwrite(server: &RedisServer, command: &[&str]) {
    const SCRIPT: &str = "redis.call('DEL', ARGV[2]) redis.call(unpack(ARGV)) return 1";
    server.cli(&[&["EVAL", SCRIPT, "0"], command].concat());
}

/// Acquires, holds for a moment, and notices whoever else does.
async fn section(lock: Lock, inside: Arc<AtomicBool>) -> Result<u64, AcquireError> {
    let guard = lock.wait(LONG).acquire().await?;
    assert!(!inside.swap(true, Ordering::SeqCst), "two at once");
    tokio::time::sleep(ms(2)).await;
    inside.store(false, Ordering::SeqCst);
    let token = guard.fencing_token().get();
    let _ = guard.release().await;
    Ok(token)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fair_waiters_outlive_whatever_is_deleted_of_their_queue() {
    let server = RedisServer::start();
    let [a, b, c] =
        [manager(&server.url()).await, manager(&server.url()).await, manager(&server.url()).await];
    let [queue, timeout, alive] = fair_names("k");
    let attacks: Vec<Vec<Vec<&str>>> = vec![
        vec![vec!["DEL", &queue]],
        vec![vec!["DEL", &timeout]],
        vec![vec!["DEL", &alive]],
        vec![vec!["DEL", &queue, &timeout]],
        vec![vec!["DEL", &queue, &alive]],
        vec![vec!["DEL", &timeout, &alive]],
        vec![vec!["DEL", &queue, &timeout, &alive]],
        vec![vec!["PEXPIRE", &queue, "1"]],
        vec![vec!["PEXPIRE", &timeout, "1"]],
        vec![vec!["PEXPIRE", &alive, "1"]],
        vec![vec!["LPOP", &queue]],
        vec![vec!["RPOP", &queue]],
        vec![vec!["ZPOPMIN", &timeout]],
        vec![vec!["FLUSHALL"]],
        vec![vec!["SCRIPT", "FLUSH"]],
        vec![vec!["DEL", "lock:k"]],
        vec![vec!["PERSIST", &queue], vec!["PERSIST", &timeout], vec!["PERSIST", &alive]],
    ];
    for attack in attacks {
        let inside = Arc::new(AtomicBool::new(false));
        let holder = a.fair("k").wait(LONG).acquire().await.unwrap();
        let mut all = JoinSet::new();
        for (n, locks) in [&b, &c, &a, &b].into_iter().enumerate() {
            all.spawn(section(locks.fair("k"), Arc::clone(&inside)));
            waiters(&server, "k", n + 1).await;
        }
        for command in &attack {
            server.cli(command);
        }
        let forgotten = attack[0] == ["FLUSHALL"] || attack[0] == ["DEL", "lock:k"];
        if !forgotten {
            tokio::time::sleep(ms(5)).await;
            assert!(!inside.load(Ordering::SeqCst));
            holder.release().await.unwrap();
        } else {
            drop(holder);
        }
        while let Some(done) =
            tokio::time::timeout(SLACK, all.join_next()).await.unwrap_or_else(|_| panic!("{attack:?}"))
        {
            done.unwrap().unwrap();
        }
    }
    for locks in [&a, &b, &c] {
        assert_idle(locks).await;
    }
    assert_nothing_is_left(&server, ms(15_000)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keys_of_another_type_are_told_and_do_not_hold_anybody_up_for_ever() {
    let server = RedisServer::start();
    let (a, b) = (manager(&server.url()).await, manager(&server.url()).await);
    let [queue, timeout, alive] = fair_names("k");
    for name in [&queue, &timeout, &alive] {
        for write in [["SET", "x", "1"].as_slice(), &["HSET", "x", "f", "v"], &["ZADD", "x", "1", "v"]] {
            let mut write = write.to_vec();
            write[1] = name;
            let holder = a.fair("k").wait(LONG).acquire().await.unwrap();
            let waiter = tokio::spawn({
                let b = b.clone();
                async move { b.fair("k").wait(LONG).acquire().await }
            });
            waiters(&server, "k", 1).await;
            overwrite(&server, &write);
            holder.release().await.unwrap();
            match tokio::time::timeout(SLACK, waiter).await.unwrap_or_else(|_| panic!("{write:?}")).unwrap() {
                Ok(guard) => guard.release().await.unwrap(),
                Err(error) => assert!(!error.is_busy(), "{write:?}: {error}"),
            }
            server.cli(&["DEL", &queue, &timeout, &alive]);
        }
    }
    let intent = "lock_rw_intent:{lock:k}";
    for write in
        [["HSET", intent, "f", "v"].as_slice(), &["SET", intent, "somebody"], &["RPUSH", intent, "v"]]
    {
        let reader = a.read("k").wait(LONG).acquire().await.unwrap();
        let writer = tokio::spawn({
            let b = b.clone();
            async move { b.write("k").wait(LONG).acquire().await }
        });
        eventually(async || server.cli(&["EXISTS", intent]) == "1", SLACK).await;
        overwrite(&server, write);
        tokio::time::sleep(ms(500)).await;
        reader.release().await.unwrap();
        match tokio::time::timeout(SLACK, writer).await.unwrap_or_else(|_| panic!("{write:?}")).unwrap() {
            Ok(guard) => guard.release().await.unwrap(),
            Err(error) => assert!(!error.is_busy(), "{error}"),
        }
        server.cli(&["DEL", intent]);
        a.read("k").wait(LONG).acquire().await.unwrap().release().await.unwrap();
    }
    for locks in [&a, &b] {
        assert_idle(locks).await;
    }
    assert_nothing_is_left(&server, ms(15_000)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn readers_and_writers_hear_when_their_holds_are_taken_away() {
    let server = RedisServer::start();
    let lease = ms(3000);
    let connect = async || {
        LockManager::builder().lease(lease).fallback_poll(ms(300)).connect(server.url()).await.unwrap()
    };
    let (a, b) = (connect().await, connect().await);
    for kind in KINDS {
        for attack in ["DEL", "UNLINK-holds", "SET", "FLUSHALL", "HDEL"] {
            let guard = lock_of(&a, kind, "k").wait(LONG).acquire().await.unwrap();
            let waiter = tokio::spawn({
                let b = b.clone();
                async move { b.write("k").wait(LONG).acquire().await }
            });
            tokio::time::sleep(ms(100)).await;
            match attack {
                "DEL" => drop(server.cli(&["DEL", "lock:k"])),
                "SET" => drop(server.cli(&["SET", "lock:k", "x"])),
                "FLUSHALL" => drop(server.cli(&["FLUSHALL"])),
                "HDEL" => {
                    let fields = server.cli(&["HKEYS", "lock:k"]);
                    let field = fields.lines().find(|field| *field != "mode").unwrap();
                    server.cli(&["HDEL", "lock:k", field]);
                }
                _ => {
                    for key in server.cli(&["KEYS", "*rwlock_timeout*"]).lines().filter(|key| !key.is_empty())
                    {
                        server.cli(&["DEL", key]);
                    }
                }
            }
            if attack != "UNLINK-holds" || kind == "read" {
                tokio::time::timeout(lease + SLACK, guard.lost())
                    .await
                    .unwrap_or_else(|_| panic!("{kind} {attack}"));
            }
            let _ = guard.release().await;
            if attack == "SET" {
                server.cli(&["DEL", "lock:k"]);
            }
            match tokio::time::timeout(SLACK, waiter)
                .await
                .unwrap_or_else(|_| panic!("{kind} {attack}"))
                .unwrap()
            {
                Ok(guard) => guard.release().await.unwrap(),
                Err(error) => assert!(!error.is_busy(), "{error}"),
            }
        }
    }
    for locks in [&a, &b] {
        assert_idle(locks).await;
    }
    assert_nothing_is_left(&server, ms(15_000)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn grants_whose_messages_are_lost_are_found() {
    let server = RedisServer::start();
    let mut managers = Vec::new();
    for _ in 0..3 {
        managers.push(manager(&server.url()).await);
    }
    let inside = Arc::new(AtomicBool::new(false));
    let holder = managers[0].fair("k").wait(LONG).acquire().await.unwrap();
    let mut all = JoinSet::new();
    for n in 0..12 {
        all.spawn(section(managers[n % 3].fair("k"), Arc::clone(&inside)));
        waiters(&server, "k", n + 1).await;
    }
    let start = Instant::now();
    server.cli(&["CLIENT", "KILL", "TYPE", "pubsub"]);
    holder.release().await.unwrap();
    let mut tokens = Vec::new();
    loop {
        server.cli(&["CLIENT", "KILL", "TYPE", "pubsub"]);
        match tokio::time::timeout(ms(10), all.join_next()).await {
            Ok(None) => break,
            Ok(Some(done)) => {
                tokens.push(done.unwrap().unwrap());
            }
            Err(_) => assert!(start.elapsed() < SLACK * 2, "{} got in", tokens.len()),
        }
    }
    assert!(tokens.is_sorted());
    for locks in &managers {
        assert_idle(locks).await;
    }
    assert_nothing_is_left(&server, ms(15_000)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiters_of_every_kind_outlive_a_restart() {
    for data in [Data::Kept, Data::Lost] {
        let mut server = RedisServer::start();
        let (a, b) = (manager(&server.url()).await, manager(&server.url()).await);
        let mut holders = Vec::new();
        let mut all = JoinSet::new();
        for kind in KINDS {
            holders.push(a.write(kind).lease(LONG).acquire().await.unwrap());
            for _ in 0..3 {
                let lock = lock_of(&b, kind, kind);
                all.spawn(async move { (kind, lock.wait(LONG).acquire().await) });
            }
        }
        waiters(&server, "fair", 3).await;
        tokio::time::sleep(ms(300)).await;
        server.restart(data);
        for holder in holders {
            let _ = holder.release().await;
        }
        while let Some(done) = tokio::time::timeout(SLACK, all.join_next()).await.unwrap() {
            let (kind, got) = done.unwrap();
            let guard = got.unwrap_or_else(|error| panic!("{data:?} {kind}: {error}"));
            let _ = guard.release().await;
        }
        for locks in [&a, &b] {
            assert_idle(locks).await;
        }
        assert_nothing_is_left(&server, ms(15_000)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_kind_of_key_text_works_in_every_kind() {
    let server = RedisServer::start();
    let (a, b) = (manager(&server.url()).await, manager(&server.url()).await);
    for key in [
        "a{b}c",
        "{}",
        "{x",
        "x}",
        "}{",
        "{{x}}",
        "ключ:🔒",
        "a b",
        "%s%d",
        "a:write",
        "mode",
        "a'\"\\",
        "1:2:write",
        "[*?]",
    ] {
        for kind in KINDS {
            for fixed in [false, true] {
                let name = format!("{key}/{kind}");
                let lock = |locks: &LockManager| {
                    let lock = lock_of(locks, kind, &name);
                    if fixed { lock.lease(LONG) } else { lock }
                };
                let guard = match lock(&a).acquire().await {
                    Ok(guard) => guard,
                    Err(error) => {
                        assert!(matches!(error, AcquireError::InvalidKey(_)), "{name}: {error}");
                        continue;
                    }
                };
                let waiter = first_poll(
                    lock_of(&b, if kind == "read" { "write" } else { kind }, &name).wait(LONG).acquire(),
                )
                .await;
                let waiter = tokio::spawn(waiter);
                tokio::time::sleep(ms(20)).await;
                assert!(!guard.is_lost());
                guard.release().await.unwrap();
                let guard = tokio::time::timeout(SLACK, waiter)
                    .await
                    .unwrap_or_else(|_| panic!("{name}"))
                    .unwrap()
                    .unwrap();
                guard.release().await.unwrap();
            }
        }
    }
    for locks in [&a, &b] {
        assert_idle(locks).await;
    }
    assert_nothing_is_left(&server, ms(15_000)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn short_waits_and_none_leave_nothing_in_any_kind() {
    let server = RedisServer::start();
    let (a, b) = (manager(&server.url()).await, manager(&server.url()).await);
    let guard = a.write("k").acquire().await.unwrap();
    for kind in KINDS {
        for wait in [Duration::ZERO, Duration::from_nanos(1), ms(1), ms(5), ms(50)] {
            for _ in 0..5 {
                let start = Instant::now();
                let error = lock_of(&b, kind, "k").wait(wait).acquire().await.unwrap_err();
                assert!(error.is_busy(), "{kind} {wait:?}: {error}");
                assert!(start.elapsed() < wait + SLACK);
            }
        }
    }
    guard.release().await.unwrap();
    for kind in KINDS {
        for wait in [Duration::ZERO, Duration::from_nanos(1), ms(1)] {
            lock_of(&b, kind, "k").wait(wait).acquire().await.unwrap().release().await.unwrap();
        }
        lock_of(&b, kind, "k").wait(Duration::MAX).acquire().await.unwrap().release().await.unwrap();
        lock_of(&b, kind, "k").wait_forever().acquire().await.unwrap().release().await.unwrap();
        let guard = a.write("k").acquire().await.unwrap();
        let waits = [lock_of(&b, kind, "k").wait_forever(), lock_of(&b, kind, "k").wait(Duration::MAX)];
        let waiting = waits.map(|lock| {
            tokio::spawn(async move {
                // Awaited: the next kind asks with no wait at all.
                lock.acquire().await?.release().await.unwrap();
                Ok::<_, AcquireError>(())
            })
        });
        tokio::time::sleep(ms(100)).await;
        guard.release().await.unwrap();
        for waiter in waiting {
            tokio::time::timeout(SLACK, waiter).await.unwrap().unwrap().unwrap();
        }
    }
    for locks in [&a, &b] {
        assert_idle(locks).await;
    }
    assert_nothing_is_left(&server, ms(15_000)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn releases_and_downgrades_may_be_dropped_at_every_await() {
    let server = RedisServer::start();
    let (a, b) = (manager(&server.url()).await, manager(&server.url()).await);
    for kind in ["mutex", "fair", "read", "write", "multi", "downgrade", "scope"] {
        for polls in 0..12 {
            let write = if kind == "downgrade" || kind == "scope" { "write" } else { kind };
            let guard = lock_of(&a, write, "k").lease(LONG).wait(SLACK).acquire().await.unwrap();
            let waiter = tokio::spawn(lock_of(&b, "multi", "k").wait(LONG).acquire());
            let inner = match kind {
                "scope" => Some(guard.scope(a.read("k").acquire()).await.unwrap()),
                _ => None,
            };
            let mut future: std::pin::Pin<Box<dyn Future<Output = ()> + Send>> = match kind {
                "downgrade" => Box::pin(async { drop(guard.downgrade().await) }),
                _ => Box::pin(async { drop(guard.release().await) }),
            };
            for _ in 0..polls {
                let done =
                    std::future::poll_fn(|cx| std::task::Poll::Ready(future.as_mut().poll(cx).is_ready()))
                        .await;
                if done {
                    break;
                }
                tokio::time::sleep(Duration::from_micros(300)).await;
            }
            drop(future);
            drop(inner);
            let guard = tokio::time::timeout(SLACK, waiter)
                .await
                .unwrap_or_else(|_| panic!("{kind} {polls}"))
                .unwrap()
                .unwrap();
            guard.release().await.unwrap();
        }
    }
    for locks in [&a, &b] {
        assert_idle(locks).await;
    }
    assert_nothing_is_left(&server, ms(15_000)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_shutdown_tells_waiters_of_every_kind_and_empties_the_queues() {
    let server = RedisServer::start();
    let (a, b) = (manager(&server.url()).await, manager(&server.url()).await);
    let holder = a.write("k").acquire().await.unwrap();
    let (_f, _w) = (a.fair("k:f").acquire().await.unwrap(), a.write("k:w").acquire().await.unwrap());
    let reader = a.read("r").acquire().await.unwrap();
    let mut all = JoinSet::new();
    for kind in KINDS {
        for _ in 0..20 {
            all.spawn(lock_of(&b, kind, "k").wait(LONG).acquire());
        }
    }
    for _ in 0..20 {
        all.spawn(b.write("r").wait(LONG).acquire());
    }
    waiters(&server, "k", 20).await;
    eventually(async || server.cli(&["EXISTS", "lock_rw_intent:{lock:r}"]) == "1", SLACK).await;
    b.shutdown(SLACK).await.unwrap();
    while let Some(done) = tokio::time::timeout(SLACK, all.join_next()).await.unwrap() {
        let error = done.unwrap().unwrap_err();
        assert!(matches!(error, AcquireError::ShutDown { .. }), "{error}");
    }
    assert_eq!(server.cli(&["EXISTS", "redisson_lock_queue:{lock:k}", "lock_rw_intent:{lock:r}"]), "0");
    for guard in [holder, reader] {
        assert!(!guard.is_lost());
        guard.release().await.unwrap();
    }
}

#[test]
fn waiters_of_a_runtime_that_is_gone_do_not_hold_the_others_up() {
    let server = RedisServer::start();
    let own = || tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let (here, doomed) = (own(), own());
    here.block_on(async {
        let handle = doomed.handle().clone();
        let (a, b) = (manager(&server.url()).await, manager(&server.url()).await);
        let dead = LockManager::builder().runtime(handle).connect(server.url()).await.unwrap();
        let holder = a.fair("k").acquire().await.unwrap();
        let inside = Arc::new(AtomicBool::new(false));
        let (mut all, mut orphans) = (JoinSet::new(), JoinSet::new());
        for _ in 0..100 {
            all.spawn(section(a.fair("k"), Arc::clone(&inside)));
            orphans.spawn(dead.fair("k").wait(LONG).acquire());
            all.spawn(section(b.fair("k"), Arc::clone(&inside)));
        }
        waiters(&server, "k", 300).await;
        doomed.shutdown_background();
        holder.release().await.unwrap();
        while let Some(done) = tokio::time::timeout(SLACK, all.join_next()).await.unwrap() {
            done.unwrap().unwrap();
        }
        while let Some(done) = tokio::time::timeout(SLACK, orphans.join_next()).await.unwrap() {
            let error = done.unwrap().unwrap_err();
            assert!(matches!(error, AcquireError::ShutDown { .. }), "{error}");
        }
        for locks in [&a, &b] {
            assert_idle(locks).await;
        }
        assert_nothing_is_left(&server, ms(15_000)).await;
    });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_thousand_readers_share_and_a_writer_gets_in() {
    let server = RedisServer::start();
    let mut managers = Vec::new();
    for _ in 0..4 {
        managers.push(manager(&server.url()).await);
    }
    let mut all = JoinSet::new();
    for n in 0..2000 {
        let lock = managers[n % 4].read("k");
        let lock = if n % 8 < 4 { lock.lease(LONG) } else { lock };
        all.spawn(async move { lock.wait(LONG).acquire().await });
    }
    let mut guards: Vec<LockGuard> = Vec::new();
    while let Some(done) = tokio::time::timeout(SLACK, all.join_next()).await.unwrap() {
        guards.push(done.unwrap().unwrap());
    }
    let writer = tokio::spawn(managers[0].write("k").wait(LONG).acquire());
    tokio::time::sleep(ms(200)).await;
    assert!(!writer.is_finished());
    drop(guards);
    let writer = tokio::time::timeout(SLACK * 2, writer).await.unwrap().unwrap().unwrap();
    writer.release().await.unwrap();
    for locks in &managers {
        assert_idle(locks).await;
    }
    assert_nothing_is_left(&server, ms(15_000)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn locks_of_two_hundred_keys_exclude() {
    let server = RedisServer::start();
    let mut managers = Vec::new();
    for _ in 0..3 {
        managers.push(manager(&server.url()).await);
    }
    let keys = |from: usize| {
        (from..from + 200).map(|n| match n % 4 {
            0 => MultiKey::mutex(format!("k{n}")),
            1 => MultiKey::fair(format!("k{n}")),
            2 => MultiKey::read(format!("k{n}")),
            _ => MultiKey::write(format!("k{n}")),
        })
    };
    let inside = Arc::new(AtomicBool::new(false));
    let mut all = JoinSet::new();
    for n in 0..12 {
        all.spawn(section(managers[n % 3].multi(keys(n * 10)), Arc::clone(&inside)));
    }
    while let Some(done) = tokio::time::timeout(LONG, all.join_next()).await.unwrap() {
        done.unwrap().unwrap();
    }
    for locks in &managers {
        assert_idle(locks).await;
    }
    assert_nothing_is_left(&server, ms(15_000)).await;
}

/// Who may not do something is told so or served, and others are not held up by it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn users_with_few_rights_hold_nobody_up_in_any_kind() {
    let server = RedisServer::start();
    let admin = manager(&server.url()).await;
    let rights = ["-publish", "-subscribe", "-@sortedset", "-@list", "-lpop", "resetchannels"];
    for (n, right) in rights.into_iter().enumerate() {
        let user = format!("user{n}");
        server.cli(&["ACL", "SETUSER", &user, "on", "nopass", "~*", "&*", "+@all", right]);
        let url = server.url().replace("redis://", &format!("redis://{user}:x@"));
        let Ok(locks) = LockManager::builder().fallback_poll(ms(300)).connect(&url).await else { continue };
        for kind in KINDS {
            let key = format!("{user}:{kind}");
            let Ok(guard) = lock_of(&locks, kind, &key).wait(LONG).acquire().await else { continue };
            let waiting = [&admin, &locks].map(|locks| {
                let lock = lock_of(locks, kind, &key).wait(LONG);
                tokio::spawn(async move { lock.acquire().await.map(drop) })
            });
            tokio::time::sleep(ms(50)).await;
            guard.release().await.unwrap();
            for (waiter, may_fail) in waiting.into_iter().zip([false, true]) {
                let done =
                    tokio::time::timeout(SLACK, waiter).await.unwrap_or_else(|_| panic!("{right} {kind}"));
                assert!(may_fail || done.unwrap().is_ok(), "{right} {kind}");
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn full_memory_refuses_new_holds_of_every_kind_and_frees_old_ones() {
    let server = RedisServer::start();
    let (a, b) = (manager(&server.url()).await, manager(&server.url()).await);
    let mut guards = Vec::new();
    let mut all = JoinSet::new();
    for kind in KINDS {
        guards.push((kind, lock_of(&a, kind, kind).acquire().await.unwrap()));
        if kind != "read" {
            for _ in 0..3 {
                let lock = lock_of(&b, kind, kind);
                all.spawn(async move { (kind, lock.wait(LONG).acquire().await) });
            }
        }
    }
    let write = a.write("down").acquire().await.unwrap();
    waiters(&server, "fair", 3).await;
    tokio::time::sleep(ms(300)).await;
    server.cli(&["CONFIG", "SET", "maxmemory", "1"]);
    let read = write.downgrade().await.unwrap();
    for (_, guard) in guards {
        guard.release().await.unwrap();
    }
    for kind in KINDS {
        let error = lock_of(&a, kind, &format!("{kind}2")).no_wait().acquire().await.unwrap_err();
        assert!(matches!(error, AcquireError::Unavailable { .. }), "{kind}: {error}");
    }
    // Places in queues have to be kept meanwhile.
    tokio::time::sleep(ms(4000)).await;
    server.cli(&["CONFIG", "SET", "maxmemory", "0"]);
    while let Some(done) = tokio::time::timeout(SLACK, all.join_next()).await.unwrap() {
        let (kind, got) = done.unwrap();
        match got {
            Ok(guard) => guard.release().await.unwrap(),
            Err(error) => assert!(matches!(error, AcquireError::Unavailable { .. }), "{kind}: {error}"),
        }
    }
    drop(read);
    for locks in [&a, &b] {
        assert_idle(locks).await;
    }
    assert_nothing_is_left(&server, ms(15_000)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_kind_survives_every_fault_of_the_network_in_every_step() {
    let server = Arc::new(RedisServer::start());
    let faults = [Fault::Delay(ms(1500)), Fault::BlackHole, Fault::Close, Fault::HalfClose, Fault::Reset];
    let here = tokio::task::LocalSet::new();
    let mut all = Vec::new();
    for kind in ["fair", "read", "write", "multi"] {
        for step in ["acquire", "queued", "keep", "release", "downgrade"] {
            if step == "downgrade" && kind != "write" {
                continue;
            }
            for fault in faults {
                for way in [Way::ToServer, Way::ToClient] {
                    let server = Arc::clone(&server);
                    all.push(here.spawn_local(async move {
                        let name = format!("{kind}/{step}/{fault:?}/{way:?}");
                        let key = name.replace(' ', "");
                        let proxy = Proxy::start(server.addr()).await;
                        let settings = LockManager::builder()
                            .call_timeout(ms(500))
                            .fallback_poll(ms(300))
                            .lease(ms(6000))
                            .connect_timeout(SLACK);
                        let locks = settings.connect(proxy.url()).await.unwrap();
                        let direct = manager(&server.url()).await;
                        for lock in [lock_of(&locks, kind, &key), lock_of(&locks, "write", &key)] {
                            let _ = lock.wait(LONG).acquire().await.unwrap().release().await;
                        }
                        match step {
                            "acquire" => {
                                let injection = proxy.next(1, Line::Commands, way, fault);
                                let guard = lock_of(&locks, kind, &key).wait(LONG).acquire().await.unwrap();
                                assert!(injection.hits() > 0);
                                let _ = guard.release().await;
                            }
                            "queued" => {
                                let holder = direct.write(&key).acquire().await.unwrap();
                                let waiter = tokio::spawn(lock_of(&locks, kind, &key).wait(LONG).acquire());
                                tokio::time::sleep(ms(100)).await;
                                let _one = proxy.next(2, Line::Commands, way, fault);
                                tokio::time::sleep(ms(1500)).await;
                                holder.release().await.unwrap();
                                let guard = tokio::time::timeout(LONG, waiter)
                                    .await
                                    .unwrap_or_else(|_| panic!("{name}"))
                                    .unwrap()
                                    .unwrap();
                                let _ = guard.release().await;
                            }
                            "keep" => {
                                let guard = lock_of(&locks, kind, &key).wait(LONG).acquire().await.unwrap();
                                let injection = proxy.next(1, Line::Commands, way, fault);
                                eventually(async || injection.hits() > 0, SLACK).await;
                                tokio::time::sleep(ms(6500)).await;
                                assert!(!guard.is_lost(), "{name}");
                                let _ = guard.release().await;
                            }
                            "release" => {
                                let guard = lock_of(&locks, kind, &key).wait(LONG).acquire().await.unwrap();
                                let _injection = proxy.next(1, Line::Commands, way, fault);
                                let _ = guard.release().await;
                            }
                            _ => {
                                let guard = locks.write(&key).wait(LONG).acquire().await.unwrap();
                                let _injection = proxy.next(1, Line::Commands, way, fault);
                                let _ = guard.downgrade().await;
                            }
                        }
                        for rival in ["multi", "write", "fair"] {
                            let waiter = lock_of(&direct, rival, &key).wait(LONG).acquire();
                            let guard = tokio::time::timeout(SLACK, waiter)
                                .await
                                .unwrap_or_else(|_| panic!("{name}: {rival}"))
                                .unwrap();
                            guard.release().await.unwrap();
                        }
                        assert_idle(&locks).await;
                    }));
                }
            }
        }
    }
    here.await;
    for done in all {
        done.await.unwrap();
    }
    assert_nothing_is_left(&server, ms(15_000)).await;
}

#[test]
fn a_direct_grant_that_comes_to_a_blocked_thread_is_not_believed_too_late() {
    let server = RedisServer::start();
    let other = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let blocked = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let (a, b) = other.block_on(async { (manager(&server.url()).await, manager(&server.url()).await) });
    let c = blocked.block_on(manager(&server.url()));
    let holder = other.block_on(a.fair("k").acquire()).unwrap();
    let mut waiter = blocked.block_on(first_poll(c.fair("k").wait(LONG).acquire()));
    blocked.block_on(waiters(&server, "k", 1));
    // The key is granted to a thread that does nothing, longer than that grant lasts.
    other.block_on(holder.release()).unwrap();
    let next = other.spawn(b.fair("k").wait(LONG).acquire());
    std::thread::sleep(ms(6000));
    let guard = other.block_on(next).unwrap().unwrap();
    let early = blocked.block_on(async { tokio::time::timeout(ms(500), &mut waiter).await });
    assert!(early.is_err(), "{early:?} while {guard:?}");
    other.block_on(guard.release()).unwrap();
    let guard = blocked.block_on(async { tokio::time::timeout(SLACK, waiter).await }).unwrap().unwrap();
    assert!(!guard.is_lost());
    blocked.block_on(guard.release()).unwrap();
}
