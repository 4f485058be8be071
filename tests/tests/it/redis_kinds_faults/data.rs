//! Others delete, overwrite and take away the data on the server; the server forgets, restarts, is
//! full, or refuses.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use lock_runtime::{LockError, LockManager};
use lock_tests::redis::Data;
use lock_tests::{RedisServer, eventually};
use tokio::task::JoinSet;

use super::{KINDS, LONG, SLACK, all_is_quiet, each, lock_of, manager, managers, ms, section, soon, waiters};

fn fair_names(key: &str) -> [String; 3] {
    ["redisson_lock_queue", "redisson_lock_timeout", "lock_fair_alive"]
        .map(|name| format!("{name}:{{lock:{key}}}"))
}

/// Deletes the key of a command and runs the command, in one step.
fn overwrite(server: &RedisServer, command: &[&str]) {
    const SCRIPT: &str = "redis.call('DEL', ARGV[2]) redis.call(unpack(ARGV)) return 1";
    server.cli(&[&["EVAL", SCRIPT, "0"], command].concat());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fair_waiters_outlive_whatever_is_deleted_of_their_queue() {
    let server = RedisServer::start();
    let [a, b, c] = managers(&server).await;
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
        each(format!("{attack:?}"), all, async |done| assert!(done.is_ok(), "{done:?}")).await;
    }
    all_is_quiet(&server, &[a, b, c]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keys_of_another_type_are_told_and_do_not_hold_anybody_up_for_ever() {
    let server = RedisServer::start();
    let [a, b] = managers(&server).await;
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
            match soon(format!("{write:?}"), waiter).await.unwrap() {
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
        match soon(format!("{write:?}"), writer).await.unwrap() {
            Ok(guard) => guard.release().await.unwrap(),
            Err(error) => assert!(!error.is_busy(), "{error}"),
        }
        server.cli(&["DEL", intent]);
        a.read("k").wait(LONG).acquire().await.unwrap().release().await.unwrap();
    }
    all_is_quiet(&server, &[a, b]).await;
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
            match soon(format!("{kind} {attack}"), waiter).await.unwrap() {
                Ok(guard) => guard.release().await.unwrap(),
                Err(error) => assert!(!error.is_busy(), "{error}"),
            }
        }
    }
    all_is_quiet(&server, &[a, b]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiters_of_every_kind_outlive_a_restart() {
    for data in [Data::Kept, Data::Lost] {
        let mut server = RedisServer::start();
        let [a, b] = managers(&server).await;
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
        each(format!("{data:?}"), all, async |(kind, got)| {
            let guard = got.unwrap_or_else(|error| panic!("{data:?} {kind}: {error}"));
            let _ = guard.release().await;
        })
        .await;
        all_is_quiet(&server, &[a, b]).await;
    }
}

/// A user without enough rights gets an error or is served, and does not hold up others.
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
                let done = soon(format!("{right} {kind}"), waiter).await;
                assert!(may_fail || done.unwrap().is_ok(), "{right} {kind}");
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn full_memory_refuses_new_holds_of_every_kind_and_frees_old_ones() {
    let server = RedisServer::start();
    let [a, b] = managers(&server).await;
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
        assert!(matches!(error, LockError::Unavailable { .. }), "{kind}: {error}");
    }
    // Places in queues have to be kept meanwhile.
    tokio::time::sleep(ms(4000)).await;
    server.cli(&["CONFIG", "SET", "maxmemory", "0"]);
    each("waiters", all, async |(kind, got)| match got {
        Ok(guard) => guard.release().await.unwrap(),
        Err(error) => panic!("{kind}: {error}"),
    })
    .await;
    drop(read);
    all_is_quiet(&server, &[a, b]).await;
}
