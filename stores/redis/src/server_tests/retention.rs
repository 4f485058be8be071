//! Lifetime of fencing counters.

use std::ops::RangeInclusive;

use lock_core::TokenRetention;

use super::*;

const COUNTER: &str = "redisson_lock_token:{lock:a}";
const MINUTE: Duration = Duration::from_secs(60);
const DAY: Duration = Duration::from_secs(24 * 60 * 60);
const KINDS: [Kind; 4] = [Kind::Mutex, Kind::Fair, Kind::Read, Kind::Write];

fn retaining(items: &[Item], lease: Duration, retention: Duration) -> AcquireRequest {
    AcquireRequest::new(items.to_vec(), lease, TIMEOUT).retention(TokenRetention::For(retention))
}

async fn left(server: &RedisServer, counter: &str) -> Duration {
    let millis: i64 = server.ask(&["PTTL", counter]).await;
    Duration::from_millis(u64::try_from(millis).unwrap_or_else(|_| panic!("{counter}: {millis}")))
}

/// Asserts that the counter outlives the hold by the retention, and not much more.
async fn assert_lives(server: &RedisServer, lease: Duration, retention: Duration, what: &str) {
    let (left, least) = (left(server, COUNTER).await, lease + retention);
    // The test may be stopped for a while.
    let fits = least - Duration::from_secs(20)..=least + retention / 4;
    assert!(fits.contains(&left), "{what}: {left:?}, {lease:?} and {retention:?}");
}

#[tokio::test]
async fn a_counter_outlives_its_hold_by_the_retention() {
    let server = RedisServer::start();
    let store = store(&server);
    for kind in KINDS {
        for retention in [2 * MINUTE, 15 * MINUTE, DAY] {
            let _: () = server.ask(&["DEL", COUNTER]).await;
            // A longer lease than the one before, then a shorter one, in direct succession.
            for lease in [LEASE, MINUTE, 30 * DAY, 2 * LEASE] {
                let before = left_if_any(&server).await;
                let mine = [item_of(kind, "a")];
                granted_by(&store, retaining(&mine, lease, retention)).await;
                if before < lease + retention {
                    assert_lives(&server, lease, retention, &format!("{kind:?}")).await;
                } else {
                    assert!(left(&server, COUNTER).await > before - MINUTE, "never shortened");
                }
                release(&store, &mine).await.unwrap();
            }
        }
    }
}

async fn left_if_any(server: &RedisServer) -> Duration {
    let millis: i64 = server.ask(&["PTTL", COUNTER]).await;
    u64::try_from(millis).map_or(Duration::ZERO, Duration::from_millis)
}

#[tokio::test]
async fn a_renewal_lengthens_the_life_of_the_counter() {
    let server = RedisServer::start();
    let store = store(&server);
    for kind in KINDS {
        let mine = [item_of(kind, "a")];
        granted_by(&store, retaining(&mine, LEASE, MINUTE)).await;
        let renewal = |lease, retention| RenewRequest {
            items: vec![RenewItem::hold(mine[0].clone(), lease).retention(retention)],
            timeout: TIMEOUT,
        };
        for lease in [LEASE, 30 * DAY] {
            let _: () = server.ask(&["PEXPIRE", COUNTER, "10000"]).await;
            let renewal = Arc::new(renewal(lease, TokenRetention::For(15 * MINUTE)));
            assert_eq!(store.renew(renewal).await.unwrap(), [Renewed::Held]);
            assert_lives(&server, lease, 15 * MINUTE, &format!("{kind:?}")).await;
        }
        // Not if the hold is lost, and not by an owner that keeps the counter forever.
        let _: () = server.ask(&["PEXPIRE", COUNTER, "10000"]).await;
        let keeping = Arc::new(renewal(LEASE, TokenRetention::Keep));
        assert_eq!(store.renew(keeping).await.unwrap(), [Renewed::Held]);
        release(&store, &mine).await.unwrap();
        let late = Arc::new(renewal(LEASE, TokenRetention::For(15 * MINUTE)));
        assert_eq!(store.renew(late).await.unwrap(), [Renewed::Gone]);
        assert!(left(&server, COUNTER).await <= Duration::from_secs(10));
    }
    // A counter of Redisson's.
    let mine = [item("a")];
    let _: () = server.ask(&["PERSIST", COUNTER]).await;
    granted(&store, &mine).await;
    assert_eq!(renew(&store, &mine, MINUTE).await, [Renewed::Held]);
    assert_eq!(server.ask::<i64>(&["PTTL", COUNTER]).await, -1);
}

#[tokio::test]
async fn a_downgrade_lengthens_the_life_of_the_counter() {
    let server = RedisServer::start();
    let store = store(&server);
    let mine = [item_of(Kind::Write, "a")];
    granted(&store, &mine).await;
    let _: () = server.ask(&["PEXPIRE", COUNTER, "10000"]).await;
    assert_eq!(downgrade(&store, &mine, DAY).await, [Renewed::Held]);
    assert_lives(&server, DAY, 15 * MINUTE, "downgraded").await;
}

#[tokio::test]
async fn the_counter_of_a_fair_lock_outlives_a_direct_grant() {
    let server = RedisServer::start();
    let store = store(&server);
    let [holder, waiter] = [[item_of(Kind::Fair, "a")], [item_of(Kind::Fair, "a")]];
    granted_by(&store, retaining(&holder, LEASE, Duration::from_secs(1))).await;
    let request = Arc::new(retaining(&waiter, LEASE, 15 * MINUTE).queued(LEASE));
    let _watch = store.watch(Arc::clone(&request)).await.unwrap();
    assert!(matches!(store.acquire(request).await.unwrap(), Acquired::Busy(_)));
    release(&store, &holder).await.unwrap();
    assert!(left(&server, COUNTER).await >= 15 * MINUTE);
}

#[tokio::test]
async fn those_that_travel_together_have_each_their_own_retention_and_lease() {
    let server = RedisServer::start();
    let store = Arc::new(store(&server));
    let times = [(LEASE, MINUTE), (2 * LEASE, 15 * MINUTE), (30 * DAY, MINUTE), (DAY, DAY)];
    for round in 0..2 {
        let mut calls = Vec::new();
        for number in 0..40 {
            let (lease, retention) = times[number % times.len()];
            let mine = item(&format!("{number}"));
            let request = Arc::new(retaining(&[mine], lease, retention));
            calls.push((tokio::spawn(store.acquire(Arc::clone(&request))), request));
        }
        for (number, (call, request)) in calls.into_iter().enumerate() {
            assert!(matches!(call.await.unwrap().unwrap(), Acquired::Granted(_)));
            let (lease, retention) = times[number % times.len()];
            let counter = format!("redisson_lock_token:{{lock:{number}}}");
            let left = left(&server, &counter).await;
            let least = lease + retention;
            let fits: RangeInclusive<_> = least - Duration::from_secs(20)..=least + retention / 4;
            assert!(fits.contains(&left), "round {round}, {number}: {left:?}");
            release(&store, &request.items).await.unwrap();
        }
    }
}

#[tokio::test]
async fn a_kept_counter_has_no_time_to_live() {
    let server = RedisServer::start();
    let store = store(&server);
    let ahead = (server_micros(&server).await + 3_600_000_000).to_string();
    for kind in [Kind::Mutex, Kind::Fair] {
        for (value, ttl) in [
            (None, false),
            (Some("7"), true),
            (Some("7"), false),
            (Some(ahead.as_str()), true),
            (Some(ahead.as_str()), false),
        ] {
            let _: () = server.ask(&["DEL", COUNTER]).await;
            if let Some(value) = value {
                let _: () = server.ask(&["SET", COUNTER, value]).await;
            }
            if ttl {
                let _: () = server.ask(&["PEXPIRE", COUNTER, "60000"]).await;
            }
            let mine = [item_of(kind, "a")];
            granted_by(&store, request(&mine).retention(TokenRetention::Keep)).await;
            assert_eq!(server.ask::<i64>(&["PTTL", COUNTER]).await, -1, "{value:?} {ttl}");
            release(&store, &mine).await.unwrap();
        }
    }
}

#[tokio::test]
async fn a_counters_life_is_never_shortened_and_never_runs_low() {
    let server = RedisServer::start();
    let store = store(&server);
    let mine = [item("a")];
    // A day is not cut to 40 s, whether the counter is behind the clock or ahead of it.
    for value in ["7".to_owned(), (server_micros(&server).await + 3_600_000_000).to_string()] {
        let _: () = server.ask(&["SET", COUNTER, &value, "PX", "86400000"]).await;
        granted_by(&store, retaining(&mine, LEASE, Duration::from_secs(40))).await;
        assert!(left(&server, COUNTER).await > DAY - MINUTE);
        release(&store, &mine).await.unwrap();
    }
    // Grants go on for longer than that.
    let (lease, retention) = (Duration::from_millis(300), Duration::from_secs(4));
    let _: () = server.ask(&["DEL", COUNTER]).await;
    let end = tokio::time::Instant::now() + Duration::from_secs(6);
    while tokio::time::Instant::now() < end {
        let tokens = [1, 1000, 131_072][rand::random_range(0..3)];
        granted_by(&store, retaining(&mine, lease, retention).tokens(tokens)).await;
        // Asks the server for both at once, since the test may be stopped in between.
        let script = "return {redis.call('PTTL', KEYS[1]), redis.call('PTTL', KEYS[2])}";
        let (hold, counter): (i64, i64) = server.ask(&["EVAL", script, "2", "lock:a", COUNTER]).await;
        let least = hold.max(0) + 4000;
        if hold > 0 {
            assert!(counter >= least && counter <= least + 1000, "{hold} {counter}");
        }
        release(&store, &mine).await.unwrap();
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Nearly all grants save one command.
#[tokio::test]
async fn few_grants_set_the_life_of_a_counter() {
    // A twentieth of the counter's life beyond the lease, in microseconds. At its beginning each
    // grant sets the life.
    const WINDOW: u64 = 15 * 60 * 1_000_000 / 16;
    let server = RedisServer::start();
    let store = store(&server);
    let mine = [item("a")];
    granted(&store, &mine).await;
    release(&store, &mine).await.unwrap();
    let quiet = 1_000_000..WINDOW - 10_000_000;
    while !quiet.contains(&(server_micros(&server).await % WINDOW)) {
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
    granted(&store, &mine).await;
    release(&store, &mine).await.unwrap();
    let began = server_micros(&server).await;
    let lines = super::wire::monitored(&server, async {
        for _ in 0..20 {
            granted(&store, &mine).await;
            release(&store, &mine).await.unwrap();
        }
    })
    .await;
    let set = |line: &&String| line.contains("PEXPIRE") && line.contains(COUNTER) && line.contains("lua");
    let sets = lines.iter().filter(set).count();
    // The machine may have stood still for that long.
    assert!(sets == 0 || server_micros(&server).await - began > 9_000_000, "{lines:#?}");
}
