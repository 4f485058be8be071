//! Subscriptions in a cluster: answers that the client library confuses, servers that forbid them,
//! and servers that die.

use std::sync::atomic::AtomicU16;

use lock_core::store::{Notice, Watch};

use super::cluster::{Cluster, ClusterExt as _, Options, home, slot_of};
use super::server::Fake;
use super::*;

const CHANNEL: &str = "redisson_lock__channel:{lock:a}";

async fn notice(watch: &mut Watch) -> Notice {
    tokio::time::timeout(Duration::from_secs(10), watch.notice()).await.expect("no notice within 10 s")
}

async fn watch(store: &RedisStore, items: &[Item]) -> Watch {
    store.watch(Arc::new(request(items))).await.unwrap()
}

fn push(kind: &str, channel: &str, count: u8) -> String {
    format!(">3\r\n${}\r\n{kind}\r\n${}\r\n{channel}\r\n:{count}\r\n", kind.len(), channel.len())
}

/// The client library takes an unrequested push for the answer to the command under way.
#[tokio::test]
async fn an_unsubscription_in_the_place_of_an_answer_begins_a_new_connection() {
    let (port, count) = (Arc::new(AtomicU16::new(0)), Arc::new(AtomicU64::new(0)));
    let (its_port, its_count) = (Arc::clone(&port), Arc::clone(&count));
    let fake = Fake::start(move |words| match &*words[0].to_uppercase() {
        "HELLO" => "%1\r\n$7\r\nversion\r\n$6\r\n7.0.15\r\n".to_owned(),
        "TIME" => "*2\r\n$10\r\n1700000000\r\n$1\r\n0\r\n".to_owned(),
        "CLUSTER" if words[1] == "SLOTS" => {
            let port = its_port.load(Ordering::SeqCst);
            format!("*1\r\n*3\r\n:0\r\n:16383\r\n*3\r\n_\r\n:{port}\r\n$2\r\nid\r\n")
        }
        "CLUSTER" => "$16\r\ncluster_state:ok\r\n".to_owned(),
        "PUBSUB" => "*0\r\n".to_owned(),
        "SSUBSCRIBE" => match its_count.fetch_add(1, Ordering::SeqCst) {
            0 => push("sunsubscribe", "another", 0) + &push("ssubscribe", &words[1], 1),
            _ => push("ssubscribe", &words[1], 1),
        },
        _ => "+OK\r\n".to_owned(),
    })
    .await;
    port.store(fake.port, Ordering::SeqCst);
    let store = store_at(&format!("redis+cluster://127.0.0.1:{}", fake.port), options());
    let mut watch = watch(&store, &[item("a")]).await;
    until("it has subscribed again", async || count.load(Ordering::SeqCst) == 2).await;
    while notice(&mut watch).await != Notice::Resubscribed {}
}

#[tokio::test]
async fn a_forbidden_channel_is_an_unconfirmed_watch() {
    let cluster = Cluster::start();
    for server in cluster.nodes() {
        let rule =
            ["ACL", "SETUSER", "ann", "on", ">hunter2", "~*", "+@all", "resetchannels", "&redisson_rwlock:*"];
        let _: () = server.ask(&rule).await;
    }
    let url = cluster.seed().replace("://", "://ann:hunter2@");
    let store = store_at(&url, options());
    assert!(!watch(&store, &[item("a")]).await.is_confirmed());
    assert!(watch(&store, &[item_of(Kind::Read, "a")]).await.is_confirmed());
    let mine = [item("a")];
    granted(&store, &mine).await;
    assert_eq!(release(&store, &mine).await.unwrap().held, [true], "no waiter can be told, but it is free");
}

#[tokio::test]
async fn a_watch_of_keys_of_several_servers_hears_of_each() {
    let cluster = Cluster::start();
    let (holder, waiter) = (cluster.store(), cluster.store());
    let names = ["a", "b", "c", "d", "e", "f"];
    let homes: std::collections::BTreeSet<_> =
        names.iter().map(|name| home(&format!("lock:{name}"))).collect();
    assert!(homes.len() > 1, "{homes:?}");
    let mut watch = watch(&waiter, &names.map(item)).await;
    assert!(watch.is_confirmed());
    for name in names {
        let mine = [item(name)];
        granted(&holder, &mine).await;
        release(&holder, &mine).await.unwrap();
        assert_eq!(notice(&mut watch).await, Notice::Retry);
    }
    drop(watch);
    // Channels are left only after the linger time, so messages of the neighbours arrive here only
    // from their own servers.
    let released = release(&waiter, &names.map(item)).await.unwrap();
    assert_eq!(released.held, [false; 6]);
}

#[tokio::test]
async fn one_task_follows_all_watches() {
    let cluster = Cluster::start();
    let store = cluster.store();
    let tasks = || tokio::runtime::Handle::current().metrics().num_alive_tasks();
    let mut watches = Vec::new();
    for number in 0..200 {
        watches.push(watch(&store, &[item(&format!("{{one}}{number}"))]).await);
    }
    // Two tasks serve the connections of each server.
    assert!(tasks() < 50, "{}", tasks());

    let slot = slot_of("{one}");
    let moving = cluster.begin_move(slot, (home("{one}") + 1) % 3);
    cluster.end_move(moving);
    granted(&store, &[item("{one}")]).await;
    for watch in &mut watches {
        while notice(watch).await != Notice::Resubscribed {}
    }
}

#[tokio::test]
async fn messages_stay_with_the_server_that_has_the_slot() {
    let cluster = Cluster::start();
    let (holder, waiter) = (cluster.store(), cluster.store());
    let watch = watch(&waiter, &[item("a")]).await;
    assert!(watch.is_confirmed());
    let home = home("lock:a");
    for (index, server) in cluster.nodes().iter().enumerate() {
        let (_, sharded): (String, u64) = server.ask(&["PUBSUB", "SHARDNUMSUB", CHANNEL]).await;
        let (_, classic): (String, u64) = server.ask(&["PUBSUB", "NUMSUB", CHANNEL]).await;
        assert_eq!((sharded, classic), (u64::from(index == home), 0));
    }
    let mine = [item("a")];
    let lines = super::wire::monitored(&cluster.nodes()[home], async {
        granted(&holder, &mine).await;
        release(&holder, &mine).await.unwrap();
    })
    .await;
    let published: Vec<_> = lines.iter().filter(|line| line.to_uppercase().contains("PUBLISH\"")).collect();
    assert_eq!(published.len(), 1, "{lines:?}");
    assert!(published[0].contains(&format!("\"SPUBLISH\" \"{CHANNEL}\" \"0\"")), "{published:?}");
}

#[tokio::test]
async fn a_fair_queue_survives_the_move_of_its_slot() {
    let cluster = Cluster::start();
    let (holder, waiter) = (cluster.store(), cluster.store());
    let (mine, next) = ([item_of(Kind::Fair, "a")], [item_of(Kind::Fair, "a")]);
    granted(&holder, &mine).await;
    let wish = Arc::new(request(&next).queued(LEASE));
    let mut watch = waiter.watch(Arc::clone(&wish)).await.unwrap();
    assert!(matches!(waiter.acquire(wish).await.unwrap(), Acquired::Busy(_)));
    let moving = cluster.begin_move(slot_of("lock:a"), (home("lock:a") + 1) % 3);
    for key in cluster.keys().await {
        cluster.move_key(moving, &key).await;
    }
    cluster.end_move(moving);
    assert!(matches!(stay(&waiter, &next).await[..], [Renewed::Waiting(_)]));
    while notice(&mut watch).await != Notice::Resubscribed {}
    release(&holder, &mine).await.unwrap();
    let granted = loop {
        if let Notice::Granted { token, .. } = notice(&mut watch).await {
            break token;
        }
    };
    assert_eq!(waiter.status(key("a")).await.unwrap().last_token, Some(granted));
    assert_eq!(release(&waiter, &next).await.unwrap().held, [true]);
}

#[tokio::test]
async fn a_replica_that_takes_over_has_the_locks_and_the_watches() {
    let home = home("lock:a");
    let mut cluster = Cluster::start_with(Options::default().replica_of(home));
    let (holder, waiter) = (cluster.store(), cluster.store());
    let mine = [item("a")];
    granted(&holder, &mine).await;
    let mut watch = watch(&waiter, &[item("a")]).await;
    assert!(watch.is_confirmed());
    until("the lock is replicated", async || cluster.nodes()[3].keys().await.contains(&"lock:a".to_owned()))
        .await;
    cluster.nodes_mut()[home].kill();
    until("the replica has taken over", async || {
        holder
            .renew(renew_request(&mine, LEASE * 3, Standing::Holder))
            .await
            .is_ok_and(|kept| kept == [Renewed::Held])
    })
    .await;
    // Waiters look from time to time, and so find out.
    until("the waiter knows, too", async || acquire(&waiter, &[item("a")]).await.is_ok()).await;
    while notice(&mut watch).await != Notice::Resubscribed {}
    while watch.try_notice().is_some() {}
    release(&holder, &mine).await.unwrap();
    assert_eq!(notice(&mut watch).await, Notice::Retry);
    granted(&waiter, &[item("a")]).await;
}
