//! A Redis server that is dead, paused, restarted, or inspected by others.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::time::Duration;

use lock_runtime::{ConnectError, LockError, LockManager};
use lock_tests::redis::{Connection, Data, Reply};
use lock_tests::{Helper, Layout, RedisServer, eventually, eventually_blocking};
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};

const LONG: Duration = Duration::from_secs(60);
const SLACK: Duration = Duration::from_secs(10);

fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

async fn connect(server: &RedisServer, layout: Layout) -> LockManager {
    LockManager::connect(&layout.url(&server.url())).await.expect("the server is up")
}

/// Asserts that a connection error names the server, and does not show the password.
fn assert_tells_where(error: &ConnectError, port: u16) {
    assert!(matches!(error, ConnectError::Unavailable { .. }), "{error:?}");
    for text in [error.to_string(), format!("{error:?}")] {
        assert!(text.contains("127.0.0.1") && text.contains(&port.to_string()), "{text}");
        assert!(!text.contains("s3cret"), "{text}");
    }
}

async fn connecting_to_a_dead_server_fails_and_says_where(layout: Layout) {
    let mut server = RedisServer::start();
    server.kill();
    let port = server.port();
    let url = format!("redis://user:s3cret@127.0.0.1:{port}/0");
    let start = Instant::now();
    let error = LockManager::connect(&layout.url(&url)).await.unwrap_err();
    assert!(start.elapsed() < Duration::from_secs(5) + SLACK, "{:?}", start.elapsed());
    assert_tells_where(&error, port);
}

async fn connecting_to_a_silent_server_fails_within_the_connect_timeout(layout: Layout) {
    // The system accepts the connection, but nobody answers.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = silent.local_addr().unwrap().port();
    let start = Instant::now();
    let error = LockManager::builder()
        .connect_timeout(ms(500))
        .connect(&layout.url(&format!("redis://user:s3cret@127.0.0.1:{port}/0")))
        .await
        .unwrap_err();
    assert!(start.elapsed() >= ms(450) && start.elapsed() < ms(500) + SLACK, "{:?}", start.elapsed());
    assert_tells_where(&error, port);
}

async fn a_wrong_password_is_not_shown(layout: Layout) {
    let server = RedisServer::start_with(&["--requirepass", "right"]);
    let url = |password: &str| layout.url(&format!("redis://:{password}@127.0.0.1:{}", server.port()));
    let error = LockManager::connect(&url("s3cret")).await.unwrap_err();
    for text in [error.to_string(), format!("{error:?}")] {
        assert!(!text.contains("s3cret"), "{text}");
    }
    let locks = LockManager::connect(&url("right")).await.unwrap();
    assert!(!format!("{locks:?}").contains("right"), "{locks:?}");
    locks.mutex("k").acquire().await.unwrap().release().await.unwrap();
}

async fn an_acquire_fails_when_the_server_is_gone(layout: Layout) {
    let mut server = RedisServer::start();
    let locks = connect(&server, layout).await;
    locks.mutex("k").acquire().await.unwrap().release().await.unwrap();
    server.kill();
    // Without a wait, it fails at once. With a wait, it is retried until the wait ends, and the
    // error is not "timed out", since nobody held the lock.
    let error = locks.mutex("k").try_acquire().await.unwrap_err();
    assert!(matches!(error, LockError::Unavailable { .. }), "{error:?}");
    let start = Instant::now();
    let error = locks.mutex("k").wait(ms(1000)).acquire().await.unwrap_err();
    assert!(matches!(error, LockError::Unavailable { .. }), "{error:?}");
    assert!(start.elapsed() >= ms(1000) && start.elapsed() < ms(1000) + SLACK, "{:?}", start.elapsed());
}

async fn a_waiter_outlives_a_restart_of_the_server(layout: Layout) {
    let mut server = RedisServer::start();
    let (locks, other) = (connect(&server, layout).await, connect(&server, layout).await);
    let guard = locks.mutex("k").acquire().await.unwrap();
    let waiter = tokio::spawn({
        let other = other.clone();
        async move { other.mutex("k").wait(LONG).acquire().await }
    });
    tokio::time::sleep(ms(300)).await;
    server.restart(Data::Kept);
    assert!(!waiter.is_finished());
    guard.release().await.unwrap();
    let start = Instant::now();
    waiter.await.unwrap().unwrap().release().await.unwrap();
    assert!(start.elapsed() < LONG / 2, "{:?}", start.elapsed());
}

async fn tokens_grow_over_a_server_that_forgot_everything(layout: Layout) {
    let mut server = RedisServer::start();
    let locks = connect(&server, layout).await;
    let guard = locks.mutex("k").acquire().await.unwrap();
    let token = guard.fencing_token();
    server.restart(Data::Lost);
    drop(guard);
    let next = locks.mutex("k").wait(LONG).acquire().await.unwrap();
    assert!(next.fencing_token() > token, "{} after {token}", next.fencing_token());
    next.release().await.unwrap();
}

async fn a_holder_hears_when_the_server_forgets_its_lock(layout: Layout) {
    let mut server = RedisServer::start();
    let lease = ms(3000);
    let locks = LockManager::builder().lease(lease).connect(&layout.url(&server.url())).await.unwrap();
    let guard = locks.mutex("k").acquire().await.unwrap();
    let start = Instant::now();
    server.restart(Data::Lost);
    guard.lost().await;
    assert!(start.elapsed() < lease + SLACK, "{:?}", start.elapsed());
    assert!(guard.is_lost());
}

/// The request that reaches the stopped server first, and so is most likely read first.
#[cfg(target_os = "linux")]
#[derive(Clone, Copy, Debug)]
enum First {
    Acquire,
    Release,
}

/// Both orders, three times each; a run takes about two seconds.
#[cfg(target_os = "linux")]
const RUNS: [First; 6] =
    [First::Release, First::Acquire, First::Release, First::Acquire, First::Release, First::Acquire];

/// Returns the holders of `lock:k` after a process died. Its acquire, limited to `call_timeout`,
/// was in the buffer of a stopped server together with the holder's release.
#[cfg(target_os = "linux")]
fn holders_after_a_stuck_acquire(first: First, call_timeout: Duration, stopped: Duration) -> String {
    let mut server = RedisServer::start();
    let url = server.url();
    let spawn = |options: &[&str]| {
        let args = std::iter::once(url.as_str()).chain(options.iter().copied());
        let mut helper = Helper::spawn(env!("CARGO_BIN_EXE_holder"), args);
        assert_eq!(helper.line(SLACK * 2), "ready");
        helper
    };
    // The release may wait for its answer as long as this test takes.
    let mut holding = spawn(&["lease=60000", "call_timeout=30000"]);
    let mut dying = spawn(&["lease=60000", &format!("call_timeout={}", call_timeout.as_millis())]);
    // Scripts are loaded and clocks compared: each request below is one message.
    for helper in [&mut holding, &mut dying] {
        assert!(helper.ask("acquire other").starts_with("acquired"));
        assert_eq!(helper.ask("release other"), "released");
    }
    assert!(holding.ask("acquire k").starts_with("acquired"));
    server.stop();
    assert_eq!(server.unread_connections(), 0);
    match first {
        First::Acquire => {
            assert_eq!(dying.ask("start k wait=60000"), "started");
            eventually_blocking(|| server.unread_connections() == 1, SLACK);
            dying.kill();
            holding.send("release k");
        }
        First::Release => {
            holding.send("release k");
            eventually_blocking(|| server.unread_connections() == 1, SLACK);
            assert_eq!(dying.ask("start k wait=60000"), "started");
            eventually_blocking(|| server.unread_connections() == 2, SLACK);
            dying.kill();
        }
    }
    eventually_blocking(|| server.unread_connections() == 1, SLACK);
    std::thread::sleep(stopped);
    server.cont();
    assert_eq!(holding.line(SLACK * 2), "released");
    std::thread::sleep(ms(1000));
    server.cli(&["HGETALL", "lock:k"])
}

/// An acquire is in the server's socket buffer when its process dies, and is read after another
/// holder's release. Without a limit to its age it would take the lock for nobody.
#[test]
#[cfg(target_os = "linux")]
fn an_acquire_stuck_in_the_servers_buffer_takes_nothing_for_a_dead_process() {
    for first in RUNS {
        // Stopped for longer than the dead process would have waited for its answer.
        let holders = holders_after_a_stuck_acquire(first, ms(500), ms(700));
        assert_eq!(holders, "", "{first:?} first");
    }
}

/// The counterpart: within its limit the same acquire is carried out, so the test above sees the
/// effect of the limit.
#[test]
#[cfg(target_os = "linux")]
fn a_stuck_acquire_within_its_limit_is_carried_out() {
    let carried_out = (0..10).any(|_| !holders_after_a_stuck_acquire(First::Release, LONG, ms(0)).is_empty());
    assert!(carried_out);
}

/// The same with a live process: it gave the acquire up, and undoes it if it was carried out after
/// all.
#[cfg(target_os = "linux")]
async fn an_acquire_given_up_while_the_server_is_stopped_leaves_no_lock(layout: Layout) {
    for first in RUNS {
        let mut server = RedisServer::start();
        // The release may wait for its answer as long as this test takes.
        let holding =
            LockManager::builder().call_timeout(LONG / 2).connect(&layout.url(&server.url())).await.unwrap();
        let waiting = connect(&server, layout).await;
        for locks in [&holding, &waiting] {
            locks.mutex("other").acquire().await.unwrap().release().await.unwrap();
        }
        let guard = holding.mutex("k").acquire().await.unwrap();
        server.stop();
        assert_eq!(server.unread_connections(), 0);
        let acquire = || {
            let waiting = waiting.clone();
            tokio::spawn(async move { waiting.mutex("k").wait(LONG).acquire().await })
        };
        let (waiter, release) = match first {
            First::Acquire => {
                let waiter = acquire();
                eventually(async || server.unread_connections() == 1, SLACK).await;
                (waiter, tokio::spawn(guard.release()))
            }
            First::Release => {
                let release = tokio::spawn(guard.release());
                eventually(async || server.unread_connections() == 1, SLACK).await;
                (acquire(), release)
            }
        };
        eventually(async || server.unread_connections() == 2, SLACK).await;
        waiter.abort();
        assert!(waiter.await.is_err_and(|error| error.is_cancelled()));
        server.cont();
        release.await.unwrap().unwrap();
        tokio::time::sleep(ms(1000)).await;
        assert_eq!(layout.owner(&server, "lock:k"), "", "{first:?} first");
    }
}

async fn contended_names_leave_no_subscription_behind(layout: Layout) {
    const NAMES: usize = 5;
    let server = RedisServer::start();
    let mut managers = Vec::new();
    for _ in 0..4 {
        let builder = LockManager::builder().subscription_linger(ms(200));
        managers.push(builder.connect(&layout.url(&server.url())).await.unwrap());
    }
    let mut tasks = Vec::new();
    for task in 0..32 {
        let locks = managers[task % managers.len()].clone();
        tasks.push(tokio::spawn(async move {
            for round in 0..20 {
                let key = format!("name:{}", (task + round) % NAMES);
                let guard = locks.mutex(&key).wait(LONG).acquire().await.unwrap();
                tokio::task::yield_now().await;
                guard.release().await.unwrap();
            }
        }));
    }
    for task in tasks {
        task.await.unwrap();
    }
    eventually(async || server.cli(&["PUBSUB", "CHANNELS", "*lock*"]).is_empty(), SLACK).await;
}

async fn keyspace_events_tell_release_from_expiry(layout: Layout) {
    let server = RedisServer::start_with(&["--notify-keyspace-events", "Egx"]);
    let mut events = Connection::open(server.addr(), Duration::from_secs(20)).unwrap();
    events.command(&["PSUBSCRIBE", "__keyevent@0__:*"]).unwrap();
    let locks = connect(&server, layout).await;

    locks.mutex("released").acquire().await.unwrap().release().await.unwrap();
    assert_eq!(next_event(&mut events, "lock:released"), "del");

    // A live holder even releases a lease that is over; only a dead one lets it expire.
    let url = layout.url(&server.url());
    let mut dying = Helper::spawn(env!("CARGO_BIN_EXE_holder"), [url.as_str()]);
    assert_eq!(dying.line(SLACK * 2), "ready");
    assert!(dying.ask("acquire expired lease=500").starts_with("acquired"));
    dying.kill();
    assert_eq!(next_event(&mut events, "lock:expired"), "expired");
}

/// Returns the next event about `key`, except the setting of its time to live.
fn next_event(events: &mut Connection, key: &str) -> String {
    loop {
        let Reply::List(message) = events.read().expect("an event comes") else { panic!("not a message") };
        let texts: Vec<String> = message.iter().map(ToString::to_string).collect();
        let [_, _, channel, name] = texts.as_slice() else { panic!("not a message: {texts:?}") };
        let event = channel.rsplit(':').next().unwrap_or_default();
        if name == key && !matches!(event, "expire" | "persist") {
            return event.to_owned();
        }
    }
}

async fn a_release_that_the_server_refuses_for_a_while_is_sent_again(layout: Layout) {
    let server = RedisServer::start();
    let locks = connect(&server, layout).await;
    let guard = locks.mutex("k").acquire().await.unwrap();
    // A save fails if a folder is in the place of its file, and then the server refuses writes.
    let folder = server.cli(&["CONFIG", "GET", "dir"]).lines().nth(1).unwrap().to_owned();
    std::fs::create_dir(format!("{folder}/dump.rdb")).unwrap();
    std::fs::write(format!("{folder}/dump.rdb/in-the-way"), "").unwrap();
    server.cli(&["CONFIG", "SET", "save", "3600 1"]);
    server.cli(&["SET", "something", "to save"]);
    server.cli(&["BGSAVE"]);
    eventually_blocking(|| server.cli(&["INFO", "persistence"]).contains("rdb_last_bgsave_status:err"), LONG);
    let error = guard.release().await.unwrap_err();
    assert!(error.to_string().contains("MISCONF"), "{error}");
    assert!(locks.status("k").await.unwrap().is_locked());
    // An acquire waits for the end of that, too.
    let error = locks.mutex("other").no_wait().acquire().await.unwrap_err();
    assert!(error.to_string().contains("MISCONF"), "{error}");
    let waiter = tokio::spawn(locks.mutex("other").wait(LONG).acquire());
    tokio::time::sleep(Duration::from_millis(500)).await;
    server.cli(&["CONFIG", "SET", "stop-writes-on-bgsave-error", "no"]);
    eventually(async || !locks.status("k").await.unwrap().is_locked(), SLACK).await;
    waiter.await.unwrap().unwrap().release().await.unwrap();
}

/// All holds of a process share their renewals.
async fn a_lock_that_its_user_may_not_renew_is_lost_alone(layout: Layout) {
    const LEASE: Duration = Duration::from_secs(5);
    let server = RedisServer::start();
    let user = |rules: &[&str]| server.cli(&[&["ACL", "SETUSER", "ann"], rules].concat());
    user(&["on", "nopass", "~*", "&*", "+@all"]);
    let url = layout.url(&server.url().replace("redis://", "redis://ann:x@"));
    let locks = LockManager::builder().lease(LEASE).connect(&url).await.unwrap();
    // At the same time, so that the same calls renew them.
    let names = ["a", "b", "c"];
    let acquires: JoinSet<_> = names.map(|name| locks.mutex(name).acquire()).into_iter().collect();
    let guards = acquires.join_all().await.into_iter().map(Result::unwrap);
    let (guards, others): (Vec<_>, Vec<_>) = guards.partition(|guard| guard.key().as_str() != "b");
    user(&["resetkeys", "~lock:a", "~lock:c"]);
    timeout(LEASE + SLACK, others[0].lost()).await.expect("it can't be renewed");
    tokio::time::sleep(LEASE).await;
    assert!(guards.iter().all(|guard| !guard.is_lost()), "{guards:?}");
}

/// A server in cluster mode that has all slots refuses scripts with keys of several slots, as some
/// proxies do. `connect` would refuse such a server.
async fn a_server_that_looks_at_slots_renews_all_locks(layout: Layout) {
    const LEASE: Duration = Duration::from_secs(5);
    let server = RedisServer::start_with(&["--cluster-enabled", "yes"]);
    server.cli(&["CLUSTER", "ADDSLOTSRANGE", "0", "16383"]);
    eventually(async || server.cli(&["CLUSTER", "INFO"]).contains("cluster_state:ok"), LONG).await;
    let locks = LockManager::builder().lease(LEASE).connect_lazy(layout.url(&server.url())).unwrap();
    let acquires: JoinSet<_> = (0..40).map(|n| locks.mutex(format!("k{n}")).acquire()).collect();
    let guards: Vec<_> = acquires.join_all().await.into_iter().map(Result::unwrap).collect();
    tokio::time::sleep(2 * LEASE).await;
    assert!(guards.iter().all(|guard| !guard.is_lost()), "{guards:?}");
}

/// Starts a server that answers every connection with `reply` and nothing more, and returns its
/// port.
fn answering(reply: &'static [u8]) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for connection in listener.incoming() {
            let mut connection = connection.unwrap();
            let _ = connection.read(&mut [0; 4096]);
            let _ = connection.write_all(reply);
        }
    });
    port
}

async fn what_a_proxy_says_for_a_moment_is_asked_again(layout: Layout) {
    for reply in [&b"%7\r\n$6\r\nser"[..], b"", b"HTTP/1.1 503 Service Unavailable\r\n\r\n"] {
        let locks = LockManager::connect_lazy(layout.url(&format!("redis://127.0.0.1:{}", answering(reply))))
            .unwrap();
        let start = Instant::now();
        let error = locks.mutex("k").wait(ms(300)).acquire().await.unwrap_err();
        assert!(matches!(error, LockError::Unavailable { .. }), "{error:?}");
        assert!(start.elapsed() >= ms(300), "{error} after {:?}", start.elapsed());
    }
}

lock_tests::on_every_layout! {
    async:
    connecting_to_a_dead_server_fails_and_says_where,
    connecting_to_a_silent_server_fails_within_the_connect_timeout,
    a_wrong_password_is_not_shown,
    an_acquire_fails_when_the_server_is_gone,
    a_waiter_outlives_a_restart_of_the_server,
    tokens_grow_over_a_server_that_forgot_everything,
    a_holder_hears_when_the_server_forgets_its_lock,
    #[cfg(target_os = "linux")]
    an_acquire_given_up_while_the_server_is_stopped_leaves_no_lock,
    contended_names_leave_no_subscription_behind,
    keyspace_events_tell_release_from_expiry,
    a_release_that_the_server_refuses_for_a_while_is_sent_again,
    a_lock_that_its_user_may_not_renew_is_lost_alone,
    a_server_that_looks_at_slots_renews_all_locks,
    what_a_proxy_says_for_a_moment_is_asked_again,
}
