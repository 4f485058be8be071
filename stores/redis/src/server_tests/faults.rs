//! Failures between the client and the server.

use lock_core::store::{StoreErrorKind, Withdrawn};

use super::server::{Fake, Proxy};
use super::*;

fn short(items: &[Item], millis: u64) -> Arc<AcquireRequest> {
    Arc::new(AcquireRequest::new(items.to_vec(), LEASE, Duration::from_millis(millis)))
}

#[tokio::test]
async fn a_server_that_is_not_there_is_unreachable() {
    let port = free_port().unwrap();
    let client = redis::Client::open(format!("redis://ann:hunter2@127.0.0.1:{port}")).unwrap();
    let store = RedisStore::new(&client, options()).unwrap();
    let started = tokio::time::Instant::now();
    for error in [
        acquire(&store, &[item("a")]).await.unwrap_err(),
        release(&store, &[item("a")]).await.unwrap_err(),
        store.check().await.unwrap_err(),
    ] {
        assert_eq!(error.kind(), StoreErrorKind::Unreachable, "{error}");
        assert!(error.to_string().contains(&format!("127.0.0.1:{port}")), "{error}");
        assert!(!format!("{error} {error:?}").contains("hunter2"));
    }
    assert!(started.elapsed() < Duration::from_secs(2), "refused connections fail fast");
}

#[tokio::test]
async fn a_server_that_says_nothing_is_unreachable_within_the_timeout() {
    let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = silent.local_addr().unwrap().port();
    let client = redis::Client::open(format!("redis://127.0.0.1:{port}")).unwrap();
    let mut options = options();
    options.connect_timeout = Duration::from_millis(300);
    let store = RedisStore::new(&client, options).unwrap();
    let started = tokio::time::Instant::now();
    let error = store.check().await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Unreachable, "{error}");
    assert!(error.to_string().contains(&port.to_string()), "{error}");
    let error = store.acquire(short(&[item("a")], 100)).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Unreachable, "nothing was sent: {error}");
    assert!(started.elapsed() < Duration::from_secs(3));
}

#[tokio::test]
async fn a_closed_connection_is_replaced_unnoticed() {
    let server = RedisServer::start();
    let store = store(&server);
    for _ in 0..5 {
        let mine = [item("a")];
        granted(&store, &mine).await;
        assert!(server.kill_clients("normal").await >= 1);
        // The end of the connection is known before the next call.
        tokio::time::sleep(Duration::from_millis(50)).await;
        assert_eq!(release(&store, &mine).await.unwrap().held, [true]);
    }
}

#[tokio::test]
async fn a_restarted_server_is_found_again() {
    let mut server = RedisServer::start();
    let store = store(&server);
    let mine = [item("a")];
    granted(&store, &mine).await;
    server.kill();
    tokio::time::sleep(Duration::from_millis(50)).await;
    let error = acquire(&store, &[item("b")]).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Unreachable, "{error}");
    server.restart(Data::Lost);
    assert_eq!(release(&store, &mine).await.unwrap().held, [false], "it forgot the lock");
    granted(&store, &mine).await;
}

#[tokio::test]
async fn a_connection_that_breaks_under_a_call_leaves_it_unanswered() {
    let mut server = RedisServer::start();
    let store = store(&server);
    granted(&store, &[item("warm-up")]).await;
    server.stop();
    let call = tokio::spawn(store.acquire(Arc::new(request(&[item("a")]))));
    tokio::time::sleep(Duration::from_millis(100)).await;
    server.kill();
    let error = call.await.unwrap().unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Unanswered, "{error}");
    assert!(error.outcome_unknown());
}

#[tokio::test]
async fn a_socket_that_swallows_everything_is_replaced() {
    let server = RedisServer::start();
    let proxy = Proxy::start(&server).await;
    let store = RedisStore::new(&proxy.client(), options()).unwrap();
    granted(&store, &[item("warm-up")]).await;
    for round in 0..3 {
        proxy.swallow_next();
        let mut timed_out = 0;
        loop {
            match store.acquire(short(&[item(&format!("a{round}"))], 200)).await {
                Ok(_) => break,
                Err(error) => {
                    assert_eq!(error.kind(), StoreErrorKind::Unanswered, "{error}");
                    timed_out += 1;
                    assert!(timed_out <= 2, "it is not replaced");
                }
            }
        }
        assert!(timed_out > 0, "the socket was not half open");
    }
}

#[tokio::test]
async fn concurrent_calls_share_one_attempt_to_connect() {
    let server = RedisServer::start();
    let proxy = Proxy::start(&server).await;
    let store = Arc::new(RedisStore::new(&proxy.client(), options()).unwrap());
    let calls: Vec<_> =
        (0..100).map(|i| tokio::spawn(store.acquire(Arc::new(request(&[item(&format!("a{i}"))]))))).collect();
    for call in calls {
        call.await.unwrap().unwrap();
    }
    assert_eq!(proxy.connections.load(Ordering::SeqCst), 1);
}

/// The stuck acquire: it lies in the socket of a stopped server while its sender gives up and
/// withdraws it on another connection.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_acquire_stuck_in_a_socket_takes_nothing() {
    for round in 0..5 {
        let mut server = RedisServer::start();
        let store = Arc::new(store(&server));
        // A TTL that ends soon would hide a leak.
        let leaving = [item("a")];
        granted(&store, &leaving).await;
        release(&store, &leaving).await.unwrap();

        server.stop();
        let stuck = short(&[item("a")], 300);
        let error = store.acquire(Arc::clone(&stuck)).await.unwrap_err();
        assert_eq!(error.kind(), StoreErrorKind::Unanswered, "{error}");
        // The connection is given up. The withdrawal goes out on another, and may be read first.
        let undone = tokio::spawn({
            let (store, stuck) = (Arc::clone(&store), Arc::clone(&stuck));
            async move {
                loop {
                    match store.withdraw(Arc::clone(&stuck)).await {
                        Ok(Withdrawn::Settled) => return,
                        Ok(Withdrawn::Pending(wait)) => tokio::time::sleep(wait).await,
                        Err(_) => tokio::time::sleep(Duration::from_millis(10)).await,
                    }
                }
            }
        });
        // In some rounds long enough for a copy that is executed now to be late, in others not.
        tokio::time::sleep(Duration::from_millis([0, 100, 300, 600, 900][round])).await;
        server.cont();
        tokio::time::timeout(Duration::from_secs(10), undone).await.unwrap().unwrap();
        assert!(!server.keys().await.contains(&"lock:a".to_owned()), "round {round}");
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert!(!server.keys().await.contains(&"lock:a".to_owned()), "round {round}: leaked");
        granted(&store, &[item("a")]).await;
    }
}

/// The same without a withdrawal: the server itself refuses a late request.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stopped_server_refuses_what_it_finds_too_late() {
    let mut server = RedisServer::start();
    let store = store(&server);
    granted(&store, &[item("warm-up")]).await;
    server.stop();
    let error = store.acquire(short(&[item("a")], 200)).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Unanswered);
    tokio::time::sleep(Duration::from_millis(400)).await;
    server.cont();
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(!server.keys().await.contains(&"lock:a".to_owned()));
}

#[tokio::test]
async fn a_replica_is_read_only() {
    let primary = RedisServer::start();
    let replica = RedisServer::start_with(&["--replicaof", "127.0.0.1", &primary.port().to_string()]);
    until("the replica is in sync", async || {
        replica.ask::<String>(&["INFO", "replication"]).await.contains("master_link_status:up")
    })
    .await;
    let store = store(&replica);
    let error = store.check().await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::ReadOnly, "{error}");
    assert!(error.to_string().contains("primary"), "{error}");
    let error = acquire(&store, &[item("a")]).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::ReadOnly, "{error}");
    let mine = [item("b")];
    granted(&super::store(&primary), &mine).await;
    until("the lock is replicated", async || replica.keys().await.contains(&"lock:b".to_owned())).await;
    let error = release(&store, &mine).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::ReadOnly, "{error}");
    let _: () = replica.ask(&["REPLICAOF", "NO", "ONE"]).await;
    granted(&store, &[item("a")]).await;
    assert_eq!(release(&store, &mine).await.unwrap().held, [true], "promoted");
}

#[tokio::test]
async fn answers_of_a_server_that_is_not_ready_say_so() {
    for answer in ["LOADING Redis is loading the dataset in memory", "BUSY Redis is busy running a script"] {
        let fake = Fake::start(move |words| match words[0].as_str() {
            "HELLO" => "%1\r\n$7\r\nversion\r\n$6\r\n7.0.15\r\n".to_owned(),
            "TIME" => "*2\r\n$10\r\n1700000000\r\n$1\r\n0\r\n".to_owned(),
            _ => format!("-{answer}\r\n"),
        })
        .await;
        let store = RedisStore::new(&fake.client(), options()).unwrap();
        for error in [acquire(&store, &[item("a")]).await.unwrap_err(), store.check().await.unwrap_err()] {
            assert_eq!(error.kind(), StoreErrorKind::NotReady, "{error}");
            assert!(error.to_string().contains(answer), "{error}");
        }
    }
}

#[tokio::test]
async fn a_server_busy_with_a_script_is_not_ready() {
    let server = RedisServer::start_with(&["--lua-time-limit", "50"]);
    let store = store(&server);
    granted(&store, &[item("warm-up")]).await;
    let mut connection = server.connection().await;
    let endless = tokio::spawn(async move {
        redis::cmd("EVAL").arg("while true do end").arg(0).exec_async(&mut connection).await
    });
    let mut asking = server.connection().await;
    let busy = async |asking: &mut redis::aio::MultiplexedConnection| {
        redis::cmd("PING").exec_async(asking).await.is_err()
    };
    while !busy(&mut asking).await {}
    let error = acquire(&store, &[item("a")]).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::NotReady, "{error}");
    let _: () = server.ask(&["SCRIPT", "KILL"]).await;
    let _ = endless.await;
    granted(&store, &[item("a")]).await;
}

#[tokio::test]
async fn answers_that_make_no_sense_leave_the_outcome_open() {
    let fake = Fake::start(|words| match words[0].as_str() {
        "HELLO" => "%1\r\n$7\r\nversion\r\n$6\r\n7.0.15\r\n".to_owned(),
        "TIME" => "*2\r\n$10\r\n1700000000\r\n$1\r\n0\r\n".to_owned(),
        "CLIENT" => "+OK\r\n".to_owned(),
        _ => "+whatever\r\n".to_owned(),
    })
    .await;
    let store = RedisStore::new(&fake.client(), options()).unwrap();
    let error = acquire(&store, &[item("a")]).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Unanswered, "{error}");
}

/// The end of a runtime ends its connections: calls fail instead of hanging or panicking.
#[test]
fn calls_fail_when_the_runtime_of_the_store_has_gone() {
    let server = RedisServer::start();
    let runtime =
        || tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let (gone, alive) = (runtime(), runtime());
    let store = gone.block_on(async { store(&server) });
    drop(gone);
    let call = store.node().connector.ready(super::super::connection::At::once(TIMEOUT));
    let error = alive.block_on(call).map(drop).unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Unreachable, "{error}");
}
