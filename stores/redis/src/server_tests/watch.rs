//! Release messages: one subscriber connection, kept for a while, repaired when it breaks.

use lock_core::store::{Notice, Watch};

use super::server::Proxy;
use super::*;

const CHANNEL: &str = "redisson_lock__channel:{lock:a}";

async fn watch(store: &RedisStore, items: &[Item]) -> Watch {
    store.watch(Arc::new(request(items))).await.unwrap()
}

async fn notice(watch: &mut Watch) -> Notice {
    tokio::time::timeout(Duration::from_secs(10), watch.notice()).await.expect("no notice within 10 s")
}

/// Returns how many subscribers the server counts.
async fn subscribers(server: &RedisServer, channel: &str) -> u64 {
    let (_, count): (String, u64) = server.ask(&["PUBSUB", "NUMSUB", channel]).await;
    count
}

async fn connections(server: &RedisServer, kind: &str) -> usize {
    let list: String = server.ask(&["CLIENT", "LIST", "TYPE", kind]).await;
    list.lines().count()
}

#[tokio::test]
async fn a_release_is_heard() {
    let server = RedisServer::start();
    let (holder, waiter) = (store(&server), store(&server));
    let mine = [item("a")];
    granted(&holder, &mine).await;
    let mut watch = watch(&waiter, &[item("a")]).await;
    assert!(watch.is_confirmed());
    assert_eq!(watch.try_notice(), None, "nothing was missed");
    let released = release(&holder, &mine).await.unwrap();
    assert_eq!(released.rivals, Rivals::Some);
    assert_eq!(notice(&mut watch).await, Notice::Retry);
}

#[tokio::test]
async fn ones_own_subscription_is_no_rival_and_hears_nothing() {
    let server = RedisServer::start();
    let store = store(&server);
    let mine = [item("a")];
    granted(&store, &mine).await;
    let mut own = watch(&store, &[item("a")]).await;
    let by_its_watcher = Arc::new(ReleaseRequest { own_watch: Some(own.echo()), ..release_request(&mine) });
    let released = store.release(Arc::clone(&by_its_watcher)).await.unwrap();
    assert_eq!((released.rivals, own.echo().is_expected()), (Rivals::None, true));
    let heard = tokio::time::timeout(Duration::from_millis(100), own.notice()).await;
    assert!(heard.is_err() && !own.echo().is_expected(), "the echo has come, and is left out: {heard:?}");

    // A neighbour in the same process shares the subscription, but counts as another listener.
    let mut neighbour = watch(&store, &[item("a")]).await;
    granted(&store, &mine).await;
    let released = store.release(by_its_watcher).await.unwrap();
    assert_eq!(released.rivals, Rivals::Some);
    assert_eq!(notice(&mut neighbour).await, Notice::Retry);

    granted(&store, &mine).await;
    drop((own, neighbour));
    let released = release(&store, &mine).await.unwrap();
    assert_eq!(released.rivals, Rivals::None, "still subscribed, but without a watch");
}

#[tokio::test]
async fn all_channels_share_one_connection_and_each_is_subscribed_once() {
    let server = RedisServer::start();
    let store = store(&server);
    let mut watches = Vec::new();
    for i in 0..50 {
        let items = [item("a"), item(&format!("b{i}")), item(&format!("c{i}"))];
        watches.push(watch(&store, &items).await);
    }
    assert!(watches.iter().all(Watch::is_confirmed));
    assert_eq!(connections(&server, "pubsub").await, 1);
    assert_eq!(subscribers(&server, CHANNEL).await, 1);
    let _: u64 = server.ask(&["PUBLISH", CHANNEL, "0"]).await;
    for watch in &mut watches {
        assert_eq!(notice(watch).await, Notice::Retry);
    }
}

#[tokio::test]
async fn a_channel_is_left_after_its_linger_and_not_before() {
    let server = RedisServer::start();
    let linger = Duration::from_millis(300);
    let store = store_with(&server, |options| options.subscription_linger = linger);
    let first = watch(&store, &[item("a")]).await;
    let left = tokio::time::Instant::now();
    drop(first);
    tokio::time::sleep(Duration::from_millis(100)).await;
    if left.elapsed() < linger {
        assert_eq!(subscribers(&server, CHANNEL).await, 1, "kept for the next waiter");
    }
    let second = watch(&store, &[item("a")]).await;
    tokio::time::sleep(linger * 2).await;
    assert_eq!(subscribers(&server, CHANNEL).await, 1, "watched again");
    drop(second);
    until("the channel is left", async || subscribers(&server, CHANNEL).await == 0).await;
    until("the connection is closed", async || connections(&server, "pubsub").await == 0).await;
    let third = watch(&store, &[item("a")]).await;
    assert!(third.is_confirmed());
}

#[tokio::test]
async fn watches_that_come_while_a_channel_is_left_are_subscribed() {
    let server = RedisServer::start();
    let store = store_with(&server, |options| options.subscription_linger = Duration::ZERO);
    let other = watch(&store, &[item("other")]).await;
    for i in 0..300 {
        let mut watch = watch(&store, &[item("a")]).await;
        assert!(watch.is_confirmed(), "{i}");
        if i % 3 == 0 {
            let _: u64 = server.ask(&["PUBLISH", CHANNEL, "0"]).await;
            assert_eq!(notice(&mut watch).await, Notice::Retry, "{i}");
        }
        drop(watch);
        if i % 2 == 0 {
            tokio::task::yield_now().await;
        }
    }
    drop(other);
    until("all channels are left", async || connections(&server, "pubsub").await == 0).await;
}

#[tokio::test]
async fn a_lost_connection_is_told_and_repaired() {
    let server = RedisServer::start();
    let store = store(&server);
    let mut watch = watch(&store, &[item("a"), item("b")]).await;
    for _ in 0..3 {
        assert_eq!(server.kill_clients("pubsub").await, 1);
        assert_eq!(notice(&mut watch).await, Notice::Retry, "a message may have been missed");
        while notice(&mut watch).await != Notice::Resubscribed {}
        until("both channels are back", async || {
            subscribers(&server, CHANNEL).await == 1
                && subscribers(&server, "redisson_lock__channel:{lock:b}").await == 1
        })
        .await;
        while watch.try_notice().is_some() {}
        let _: u64 = server.ask(&["PUBLISH", CHANNEL, "0"]).await;
        while notice(&mut watch).await != Notice::Retry {}
        while watch.try_notice().is_some() {}
    }
}

#[tokio::test]
async fn watches_survive_a_restart_of_the_server() {
    let mut server = RedisServer::start();
    let store = store(&server);
    let mut watch = watch(&store, &[item("a")]).await;
    server.kill();
    assert_eq!(notice(&mut watch).await, Notice::Retry);
    let mut polling = super::watch::watch(&store, &[item("a")]).await;
    assert!(!polling.is_confirmed(), "no server, no subscription, no error");
    server.restart(Data::Lost);
    for watch in [&mut watch, &mut polling] {
        while notice(watch).await != Notice::Resubscribed {}
    }
    let _: u64 = server.ask(&["PUBLISH", CHANNEL, "0"]).await;
    for watch in [&mut watch, &mut polling] {
        while notice(watch).await != Notice::Retry {}
    }
}

#[tokio::test]
async fn a_half_open_subscription_is_noticed_by_ping() {
    let server = RedisServer::start();
    let proxy = Proxy::start(&server).await;
    let mut options = options();
    options.ping_every = Duration::from_millis(100);
    options.call_timeout = Duration::from_millis(200);
    let store = RedisStore::new(&proxy.client(), options).unwrap();
    let mut watch = watch(&store, &[item("a")]).await;
    assert!(watch.is_confirmed());
    proxy.swallow_next();
    assert_eq!(notice(&mut watch).await, Notice::Retry);
    while notice(&mut watch).await != Notice::Resubscribed {}
    let _: u64 = server.ask(&["PUBLISH", CHANNEL, "0"]).await;
    while notice(&mut watch).await != Notice::Retry {}
}

#[tokio::test]
async fn a_full_queue_drops_retries_and_keeps_a_place_for_resubscribed() {
    let server = RedisServer::start();
    let store = store(&server);
    let mut watch = watch(&store, &[item("a")]).await;
    for _ in 0..100 {
        let _: u64 = server.ask(&["PUBLISH", CHANNEL, "0"]).await;
    }
    server.kill_clients("pubsub").await;
    until("it is subscribed again", async || subscribers(&server, CHANNEL).await == 1).await;
    tokio::time::sleep(Duration::from_millis(100)).await;
    let mut heard = Vec::new();
    while let Some(notice) = watch.try_notice() {
        heard.push(notice);
    }
    assert!(heard.len() < 20, "{heard:?}");
    assert_eq!(heard.last(), Some(&Notice::Resubscribed), "{heard:?}");
}

#[tokio::test]
async fn an_unsolicited_unsubscribe_is_repaired() {
    let server = RedisServer::start();
    let _: () = server.ask(&["ACL", "SETUSER", "ann", "on", ">hunter2", "~*", "&*", "+@all"]).await;
    let store = RedisStore::new(&server.client_as("ann", "hunter2"), options()).unwrap();
    let mut watch = watch(&store, &[item("a")]).await;
    assert!(watch.is_confirmed());
    // The server disconnects clients whose channel rights are removed. The rights come back a
    // moment later.
    let _: () = server.ask(&["ACL", "SETUSER", "ann", "resetchannels", "&other"]).await;
    let _: () = server.ask(&["ACL", "SETUSER", "ann", "&*"]).await;
    while notice(&mut watch).await != Notice::Resubscribed {}
}

#[tokio::test]
async fn nothing_is_left_of_a_dropped_store() {
    let server = RedisServer::start();
    let metrics = tokio::runtime::Handle::current().metrics();
    // The server side's own connection comes and goes.
    let _: String = server.ask(&["PING"]).await;
    let before = metrics.num_alive_tasks();
    let store = store(&server);
    granted(&store, &[item("a")]).await;
    let mut watch = watch(&store, &[item("a")]).await;
    assert!(metrics.num_alive_tasks() > before);
    drop(store);
    until("all tasks have ended", async || metrics.num_alive_tasks() <= before).await;
    let pending = tokio::time::timeout(Duration::from_millis(50), watch.notice()).await;
    assert!(pending.is_err(), "the watch stays silent");
    until("the server has no subscribers", async || {
        connections(&server, "pubsub").await == 0 && connections(&server, "normal").await <= 1
    })
    .await;
}

/// A task that is woken after its runtime has ended is dropped by its waker, and its watch with it.
#[test]
fn a_runtime_may_end_while_messages_come() {
    const CHANNELS: usize = 300;
    let server = RedisServer::start();
    for round in 0..40 {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        // They outlive the runtime, as a manager in a static does.
        let kept = runtime.block_on(async {
            let store = Arc::new(store(&server));
            let requests: Vec<_> =
                (0..CHANNELS).map(|i| Arc::new(request(&[item(&format!("n{i}"))]))).collect();
            let mut subscribed = Vec::new();
            for request in &requests {
                subscribed.push(store.watch(Arc::clone(request)).await.unwrap());
            }
            for request in &requests {
                let watch = store.watch(Arc::clone(request));
                lock_core::internal::eager::spawn(&Handle::current(), async move {
                    let mut watch = watch.await.unwrap();
                    watch.notice().await;
                    std::future::pending::<()>().await;
                });
            }
            let mut messages = redis::pipe();
            for i in 0..CHANNELS {
                messages.cmd("PUBLISH").arg(format!("redisson_lock__channel:{{lock:n{i}}}")).arg("0");
            }
            let _: Vec<u64> = messages.query_async(&mut server.connection().await).await.unwrap();
            (subscribed, store)
        });
        std::thread::sleep(Duration::from_micros(round * 37));
        let (done, ended) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            drop(runtime);
            let _ = done.send(());
        });
        assert!(
            ended.recv_timeout(Duration::from_secs(60)).is_ok(),
            "round {round}: the runtime did not end"
        );
        drop(kept);
    }
}
