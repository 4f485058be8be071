//! Readers and writers as others see them, with Redisson's names, fields, times and messages.

use lock_core::store::{Notice, Withdrawn};

use super::wire::Subscription;
use super::*;

const CHANNEL: &str = "redisson_rwlock:{lock:a}";
const INTENT: &str = "lock_rw_intent:{lock:a}";

pub(super) fn read(name: &str) -> Item {
    item_of(Kind::Read, name)
}

pub(super) fn write(name: &str) -> Item {
    item_of(Kind::Write, name)
}

/// Returns the fields of the hash, sorted.
pub(super) async fn fields(server: &RedisServer, lock: &str) -> Vec<(String, String)> {
    let mut fields: Vec<(String, String)> = server.ask(&["HGETALL", lock]).await;
    fields.sort();
    fields
}

fn expected(mode: &str, counts: &[String]) -> Vec<(String, String)> {
    let counts = counts.iter().map(|field| (field.clone(), "1".to_owned()));
    let mut fields: Vec<_> = counts.chain([("mode".to_owned(), mode.to_owned())]).collect();
    fields.sort();
    fields
}

pub(super) fn reads(item: &Item) -> String {
    item.owner.to_string()
}

pub(super) fn writes(item: &Item) -> String {
    format!("{}:write", item.owner)
}

pub(super) fn hold(item: &Item) -> String {
    format!("{{lock:a}}:{}:rwlock_timeout:1", item.owner)
}

pub(super) async fn pttl(server: &RedisServer, key: &str) -> i64 {
    server.ask(&["PTTL", key]).await
}

pub(super) async fn pexpire(server: &RedisServer, key: &str, millis: i64) {
    let _: () = server.ask(&["PEXPIRE", key, &millis.to_string()]).await;
}

/// Returns a request for these items with a lease of `secs` seconds.
pub(super) fn leased(items: &[Item], secs: u64) -> AcquireRequest {
    AcquireRequest::new(items.to_vec(), Duration::from_secs(secs), TIMEOUT)
}

/// Asserts that `left` is at most `most`, and not much less.
pub(super) fn assert_about(left: i64, most: i64) {
    assert!(left <= most && left > most - 8_000, "{left} of {most}");
}

/// Returns the messages published since the subscription began.
async fn heard(server: &RedisServer, subscription: &mut Subscription) -> Vec<String> {
    let _: () = server.ask(&["PUBLISH", CHANNEL, "9"]).await;
    let mut heard = Vec::new();
    loop {
        match subscription.next().await.as_str() {
            "9" => return heard,
            message => heard.push(message.to_owned()),
        }
    }
}

#[tokio::test]
async fn the_keys_of_readers_and_writers_are_redissons() {
    let server = RedisServer::start();
    for (prefix, name, lock, tag) in [
        ("lock:", "a", "lock:a", "{lock:a}"),
        ("", "{x}:a", "{x}:a", "{x}:a"),
        ("{p}:", "a", "{p}:a", "{p}:a"),
    ] {
        let _: () = server.ask(&["FLUSHALL"]).await;
        let store = store_with(&server, |options| options.prefix = prefix.to_owned());
        let counter = format!("redisson_lock_token:{tag}");

        let reader = [read(name)];
        granted(&store, &reader).await;
        let mut keys = vec![lock.to_owned(), counter.clone()];
        keys.push(format!("{tag}:{}:rwlock_timeout:1", reader[0].owner));
        keys.sort();
        assert_eq!(server.keys().await, keys);
        assert_eq!(fields(&server, lock).await, expected("read", &[reads(&reader[0])]));

        waits(&store, &[write(name)]).await;
        keys.push(format!("lock_rw_intent:{tag}"));
        keys.sort();
        assert_eq!(server.keys().await, keys);
        release(&store, &reader).await.unwrap();
        let _: () = server.ask(&["DEL", &format!("lock_rw_intent:{tag}")]).await;
        assert_eq!(server.keys().await, [counter.as_str()]);

        let writer = [write(name)];
        granted(&store, &writer).await;
        keys = vec![lock.to_owned(), counter.clone()];
        keys.sort();
        assert_eq!(server.keys().await, keys);
        assert_eq!(fields(&server, lock).await, expected("write", &[writes(&writer[0])]));
        release(&store, &writer).await.unwrap();
        assert_eq!(server.keys().await, [counter.as_str()]);
    }
}

#[tokio::test]
async fn every_grant_has_a_token_above_all_before() {
    let server = RedisServer::start();
    let store = store(&server);
    let mut highest = 0;
    for kind in [Kind::Read, Kind::Write, Kind::Mutex, Kind::Write, Kind::Read] {
        let mine = [item_of(kind, "a")];
        let range = granted_by(&store, request(&mine).tokens(3)).await.tokens[0];
        assert!(range.first > highest && range.last == range.first + 2, "{range:?} {highest}");
        highest = range.last;
        let counter: u64 = server.ask(&["GET", "redisson_lock_token:{lock:a}"]).await;
        assert_eq!(counter, highest);
        release(&store, &mine).await.unwrap();
    }
}

#[tokio::test]
async fn each_reader_has_its_own_lease_and_the_hash_the_longest() {
    let server = RedisServer::start();
    let store = store(&server);
    let (short, long, last) = ([read("a")], [read("a")], [read("a")]);
    granted_by(&store, leased(&short, 20)).await;
    granted_by(&store, leased(&long, 60)).await;
    granted_by(&store, leased(&last, 40)).await;
    for (key, secs) in [(hold(&short[0]), 20), (hold(&long[0]), 60), (hold(&last[0]), 40)] {
        assert_about(pttl(&server, &key).await, secs * 1000);
    }
    assert_about(pttl(&server, "lock:a").await, 60_000);

    // The longest hold goes: the hash gets the time of the longest of the others.
    release(&store, &long).await.unwrap();
    assert_about(pttl(&server, "lock:a").await, 40_000);
    release(&store, &short).await.unwrap();
    assert_about(pttl(&server, "lock:a").await, 40_000);
    assert_eq!(fields(&server, "lock:a").await, expected("read", &[reads(&last[0])]));
    release(&store, &last).await.unwrap();
    assert!(!server.keys().await.iter().any(|key| key.contains("rwlock_timeout") || key == "lock:a"));
}

#[tokio::test]
async fn writers_exclude_all_and_readers_exclude_writers() {
    let server = RedisServer::start();
    let store = store(&server);
    let kinds = [Kind::Mutex, Kind::Read, Kind::Write];
    for held in kinds {
        let mine = [item_of(held, "a")];
        granted(&store, &mine).await;
        for asked in kinds {
            let theirs = [item_of(asked, "a")];
            if (held, asked) == (Kind::Read, Kind::Read) {
                granted(&store, &theirs).await;
                release(&store, &theirs).await.unwrap();
            } else {
                let busy = busy(&store, &theirs).await;
                assert!(
                    busy.remaining.unwrap() <= LEASE && busy.remaining.unwrap() > LEASE / 2,
                    "{held:?} {asked:?} {busy:?}"
                );
                assert_eq!(release(&store, &theirs).await.unwrap().held, [false], "{held:?} {asked:?}");
            }
        }
        assert_eq!(release(&store, &mine).await.unwrap().held, [true], "{held:?}");
        assert!(!server.keys().await.contains(&"lock:a".to_owned()));
    }
}

#[tokio::test]
async fn a_grant_that_is_sent_again_stays_one_hold_and_only_lengthens() {
    let server = RedisServer::start();
    let store = store(&server);
    for mine in [[read("a")], [write("a")]] {
        let first = granted(&store, &mine).await;
        let before = fields(&server, "lock:a").await;
        let reader = mine[0].kind == Kind::Read;
        pexpire(&server, "lock:a", 300_000).await;
        if reader {
            pexpire(&server, &hold(&mine[0]), 300_000).await;
        }
        let second = granted(&store, &mine).await;
        assert!(second.tokens[0].first > first.tokens[0].last);
        assert_eq!(fields(&server, "lock:a").await, before);
        assert_about(pttl(&server, "lock:a").await, 300_000);
        granted_by(&store, AcquireRequest::new(mine.to_vec(), Duration::from_secs(600), TIMEOUT)).await;
        assert_about(pttl(&server, "lock:a").await, 600_000);
        if reader {
            assert_about(pttl(&server, &hold(&mine[0])).await, 600_000);
        }
        assert_eq!(release(&store, &mine).await.unwrap().held, [true]);
        assert!(!server.keys().await.contains(&"lock:a".to_owned()));
    }
}

#[tokio::test]
async fn the_last_reader_says_0_and_a_writer_says_1() {
    let server = RedisServer::start();
    let store = store(&server);
    let mut waiter = Subscription::start(&server, CHANNEL).await;
    let (one, two, writer) = ([read("a")], [read("a")], [write("a")]);
    granted(&store, &one).await;
    granted(&store, &two).await;
    let released = release(&store, &one).await.unwrap();
    assert_eq!(released, Released { held: vec![true].into(), rivals: Rivals::None, then: None });
    assert!(heard(&server, &mut waiter).await.is_empty(), "the lock is not free");
    assert_eq!(release(&store, &two).await.unwrap().rivals, Rivals::Some);
    assert_eq!(heard(&server, &mut waiter).await, ["0"]);

    granted(&store, &writer).await;
    assert_eq!(release(&store, &writer).await.unwrap().rivals, Rivals::Some);
    assert_eq!(heard(&server, &mut waiter).await, ["1"]);
    assert_eq!(release(&store, &writer).await.unwrap().held, [false], "sent again");
    assert_eq!(release(&store, &one).await.unwrap().held, [false], "sent again");
    assert!(heard(&server, &mut waiter).await.is_empty());
}

#[tokio::test]
async fn a_watch_of_readers_and_writers_hears_both() {
    let server = RedisServer::start();
    let (store, other) = (store(&server), store(&server));
    for waiting in [read("a"), write("a")] {
        let mut watch = other.watch(Arc::new(request(&[waiting]))).await.unwrap();
        for mine in [[read("a")], [write("a")]] {
            granted(&store, &mine).await;
            release(&store, &mine).await.unwrap();
            assert_eq!(watch.notice().await, Notice::Retry);
        }
    }
}

#[tokio::test]
async fn a_waiting_writer_keeps_new_readers_out() {
    let server = RedisServer::start();
    let store = store(&server);
    let (reader, writer) = ([read("a")], [write("a")]);
    granted(&store, &reader).await;
    busy(&store, &writer).await;
    assert_eq!(pttl(&server, INTENT).await, -2, "a request that does not wait leaves nothing");
    assert_eq!(waits(&store, &writer).await.item, 0);
    assert_eq!(server.ask::<String>(&["GET", INTENT]).await, writer[0].owner.as_str());
    assert!((1..=1000).contains(&pttl(&server, INTENT).await));

    // An intent that lasts for the whole test.
    pexpire(&server, INTENT, 60_000).await;
    let left = busy(&store, &[read("a")]).await.remaining.unwrap();
    assert!(left > Duration::from_secs(50), "as long as the intent, not the lock: {left:?}");
    granted(&store, &reader).await;
    waits(&store, &[write("a")]).await;
    assert_eq!(server.ask::<String>(&["GET", INTENT]).await, writer[0].owner.as_str(), "the first one's");

    release(&store, &reader).await.unwrap();
    assert!(
        busy(&store, &[read("a")]).await.remaining.unwrap() > Duration::from_secs(50),
        "also when it is free"
    );
    granted(&store, &writer).await;
    assert_eq!(pttl(&server, INTENT).await, -2, "the grant ends it");
    release(&store, &writer).await.unwrap();
    granted(&store, &[read("a")]).await;
}

#[tokio::test]
async fn writers_that_wait_for_a_writer_or_a_mutex_have_no_intent() {
    let server = RedisServer::start();
    let store = store(&server);
    for holder in [[write("a")], [item("a")]] {
        granted(&store, &holder).await;
        let waiter = [write("a")];
        waits(&store, &waiter).await;
        assert!(matches!(stay(&store, &waiter).await[..], [Renewed::Waiting(_)]));
        assert_eq!(pttl(&server, INTENT).await, -2);
        release(&store, &holder).await.unwrap();
    }
}

#[tokio::test]
async fn a_kept_writer_renews_its_intent_as_long_as_readers_have_the_lock() {
    let server = RedisServer::start();
    let store = store(&server);
    let (reader, writer) = ([read("a")], [write("a")]);
    granted(&store, &reader).await;
    assert_eq!(stay(&store, &writer).await, [Renewed::Waiting(Duration::from_millis(1))], "lost: ask again");
    assert_eq!(pttl(&server, INTENT).await, -2);
    let _: () = server.ask(&["SET", INTENT, writer[0].owner.as_str(), "PX", "200"]).await;
    let kept = stay(&store, &writer).await;
    assert!(matches!(kept[..], [Renewed::Waiting(time)] if time > LEASE / 2 && time <= LEASE), "{kept:?}");
    assert!(pttl(&server, INTENT).await > 200);
    // Another writer's intent stays unchanged.
    let _: () = server.ask(&["SET", INTENT, "x:1", "PX", "60000"]).await;
    stay(&store, &writer).await;
    assert_eq!(server.ask::<String>(&["GET", INTENT]).await, "x:1");
    let _: () = server.ask(&["DEL", INTENT]).await;

    release(&store, &reader).await.unwrap();
    assert_eq!(
        stay(&store, &writer).await,
        [Renewed::Waiting(Duration::from_millis(1))],
        "free: look at once"
    );
    assert_eq!(pttl(&server, INTENT).await, -2);
    granted(&store, &writer).await;
    assert_eq!(stay(&store, &writer).await, [Renewed::Held]);
}

#[tokio::test]
async fn a_withdrawn_writer_wakes_the_readers_that_it_kept_out() {
    let server = RedisServer::start();
    let store = store(&server);
    let mut waiter = Subscription::start(&server, CHANNEL).await;
    let reader = [read("a")];
    granted(&store, &reader).await;
    let mine =
        Arc::new(AcquireRequest::new(vec![write("a")], LEASE, Duration::from_millis(50)).queued(LEASE));
    assert!(matches!(store.acquire(Arc::clone(&mine)).await.unwrap(), Acquired::Busy(_)));
    while let Withdrawn::Pending(left) = store.withdraw(Arc::clone(&mine)).await.unwrap() {
        tokio::time::sleep(left).await;
    }
    assert_eq!(pttl(&server, INTENT).await, -2);
    assert_eq!(heard(&server, &mut waiter).await, ["1"]);
    granted(&store, &[read("a")]).await;

    // Another writer's intent is left alone.
    let theirs = write("a");
    waits(&store, std::slice::from_ref(&theirs)).await;
    pexpire(&server, INTENT, 60_000).await;
    store.withdraw(mine).await.unwrap();
    assert_eq!(server.ask::<String>(&["GET", INTENT]).await, theirs.owner.as_str());
    assert!(heard(&server, &mut waiter).await.is_empty());
}

#[tokio::test]
async fn a_withdrawal_gives_back_what_was_granted() {
    let server = RedisServer::start();
    let store = store(&server);
    let stays = [read("a")];
    for kind in [Kind::Read, Kind::Write] {
        if kind == Kind::Read {
            granted(&store, &stays).await;
        }
        let mine = Arc::new(request(&[item_of(kind, "a")]));
        assert!(matches!(store.acquire(Arc::clone(&mine)).await.unwrap(), Acquired::Granted(_)));
        assert!(matches!(store.withdraw(Arc::clone(&mine)).await.unwrap(), Withdrawn::Pending(_)));
        assert_eq!(
            store.renew(renew_request(&mine.items, LEASE, Standing::Holder)).await.unwrap(),
            [Renewed::Gone]
        );
        assert_eq!(release(&store, &stays).await.unwrap().held, [kind == Kind::Read]);
        assert!(!server.keys().await.iter().any(|key| key.contains("rwlock_timeout") || key == "lock:a"));
    }
}

#[tokio::test]
async fn renew_lengthens_hash_and_hold_and_nothing_else() {
    let server = RedisServer::start();
    let store = store(&server);
    let (reader, neighbour, writer) = (read("a"), read("a"), write("b"));
    granted(&store, &[reader.clone(), writer.clone()]).await;
    granted(&store, std::slice::from_ref(&neighbour)).await;
    let mine = [reader.clone(), writer.clone(), read("a"), write("b"), item("b")];
    let kept = renew(&store, &mine, Duration::from_secs(60)).await;
    assert_eq!(kept, [Renewed::Held, Renewed::Held, Renewed::Gone, Renewed::Gone, Renewed::Gone]);
    for key in ["lock:a", &hold(&reader), "lock:b"] {
        assert_about(pttl(&server, key).await, 60_000);
    }
    assert_about(pttl(&server, &hold(&neighbour)).await, 10_000);
    assert_eq!(renew(&store, &mine[..2], Duration::from_secs(1)).await, [Renewed::Held; 2]);
    for key in ["lock:a", &hold(&reader), "lock:b"] {
        assert_about(pttl(&server, key).await, 60_000);
    }
}

#[tokio::test]
async fn a_downgrade_makes_a_reader_and_says_1() {
    let server = RedisServer::start();
    let store = store(&server);
    let mut waiter = Subscription::start(&server, CHANNEL).await;
    let writer = [write("a")];
    granted(&store, &writer).await;
    // Another owner's intent to write does not matter.
    let _: () = server.ask(&["SET", INTENT, "x:1", "PX", "60000"]).await;
    assert_eq!(downgrade(&store, &writer, Duration::from_secs(60)).await, [Renewed::Held]);
    assert_eq!(fields(&server, "lock:a").await, expected("read", &[reads(&writer[0])]));
    for key in ["lock:a", &hold(&writer[0])] {
        assert_about(pttl(&server, key).await, 60_000);
    }
    assert_eq!(heard(&server, &mut waiter).await, ["1"]);

    // A repetition renews, but never shortens.
    assert_eq!(downgrade(&store, &writer, Duration::from_secs(90)).await, [Renewed::Held]);
    assert_eq!(downgrade(&store, &writer, Duration::from_secs(1)).await, [Renewed::Held]);
    for key in ["lock:a", &hold(&writer[0])] {
        assert_about(pttl(&server, key).await, 90_000);
    }
    assert!(heard(&server, &mut waiter).await.is_empty());
    assert_eq!(downgrade(&store, &[write("a"), write("b")], LEASE).await, [Renewed::Gone, Renewed::Gone]);

    let _: () = server.ask(&["DEL", INTENT]).await;
    let reader = [read("a")];
    granted(&store, &reader).await;
    // An owner that does not know yet that it only reads renews and releases as the writer that it
    // was.
    assert_eq!(renew(&store, &writer, Duration::from_secs(120)).await, [Renewed::Held]);
    assert_about(pttl(&server, &hold(&writer[0])).await, 120_000);
    assert_eq!(release(&store, &writer).await.unwrap().held, [true]);
    assert_eq!(fields(&server, "lock:a").await, expected("read", &[reads(&reader[0])]));
    assert_about(pttl(&server, "lock:a").await, 10_000);
}

#[tokio::test]
async fn a_writer_may_read_too_and_gives_back_one_after_the_other() {
    let server = RedisServer::start();
    let store = store(&server);
    let writer = [write("a")];
    let reader = [Item { kind: Kind::Read, ..writer[0].clone() }];
    let both = expected("write", &[reads(&writer[0]), writes(&writer[0])]);
    for reader_first in [true, false] {
        let mut waiter = Subscription::start(&server, CHANNEL).await;
        granted_by(&store, AcquireRequest::new(writer.to_vec(), Duration::from_secs(60), TIMEOUT)).await;
        granted(&store, &reader).await;
        assert_eq!(fields(&server, "lock:a").await, both);
        if reader_first {
            release(&store, &reader).await.unwrap();
            assert_eq!(fields(&server, "lock:a").await, expected("write", &[writes(&writer[0])]));
            assert_about(pttl(&server, "lock:a").await, 60_000);
            assert!(heard(&server, &mut waiter).await.is_empty());
            release(&store, &writer).await.unwrap();
        } else {
            release(&store, &writer).await.unwrap();
            assert_eq!(heard(&server, &mut waiter).await, ["1"], "other readers may come in");
            assert_eq!(fields(&server, "lock:a").await, expected("read", &[reads(&writer[0])]));
            release(&store, &reader).await.unwrap();
        }
        assert!(!server.keys().await.iter().any(|key| key.contains("rwlock_timeout") || key == "lock:a"));
    }
}

#[tokio::test]
async fn a_lingering_release_shortens_and_says_so() {
    let server = RedisServer::start();
    let store = store(&server);
    let linger = |items: &[Item], secs| {
        let request = ReleaseRequest { linger: Duration::from_secs(secs), ..release_request(items) };
        store.release(Arc::new(request))
    };
    for (mine, message) in [([read("a")], "0"), ([write("a")], "1")] {
        let mut waiter = Subscription::start(&server, CHANNEL).await;
        granted_by(&store, AcquireRequest::new(mine.to_vec(), Duration::from_secs(100), TIMEOUT)).await;
        assert_eq!(linger(&mine, 50).await.unwrap().held, [true]);
        assert_about(pttl(&server, "lock:a").await, 50_000);
        assert_eq!(linger(&mine, 80).await.unwrap().held, [true]);
        assert_about(pttl(&server, "lock:a").await, 50_000);
        assert_eq!(linger(&[read("a"), write("a")], 1).await.unwrap().held, [false, false]);
        assert_about(pttl(&server, "lock:a").await, 50_000);
        assert_eq!(heard(&server, &mut waiter).await, [message]);
        release(&store, &mine).await.unwrap();
    }
    // Other readers keep their time.
    let (mine, other) = ([read("a")], [read("a")]);
    granted_by(&store, AcquireRequest::new(mine.to_vec(), Duration::from_secs(100), TIMEOUT)).await;
    granted_by(&store, AcquireRequest::new(other.to_vec(), Duration::from_secs(40), TIMEOUT)).await;
    linger(&mine, 1).await.unwrap();
    assert_about(pttl(&server, "lock:a").await, 40_000);
    assert!(pttl(&server, &hold(&mine[0])).await <= 1000);
}

#[tokio::test]
async fn a_takeover_of_readers_and_writers_is_declined() {
    let server = RedisServer::start();
    let store = store(&server);
    for mine in [[read("a")], [write("a")]] {
        granted(&store, &mine).await;
        let next = Arc::new(request(&[item_of(mine[0].kind, "a")]));
        let then = lock_core::store::Takeover {
            request: Arc::clone(&next),
            listeners: lock_core::store::ListenerPolicy::Ignore,
        };
        let released =
            store.release(Arc::new(ReleaseRequest { then: Some(then), ..release_request(&mine) })).await;
        assert_eq!(released.unwrap(), Released { held: vec![true].into(), rivals: Rivals::None, then: None });
        assert!(next.latest().is_none(), "never sent");
    }
}
