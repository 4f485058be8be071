//! The memory store as the model: both stores give the same answers to the same requests in any
//! order.
//!
//! Leases are longer than the test, and nobody waits, so that time plays no part.

use lock_core::store::{LockStatus, Withdrawn};
use lock_store_memory::MemoryStore;
use proptest::prelude::*;

use super::*;

const KEYS: [&str; 2] = ["a", "b"];
const OWNERS: u64 = 3;
const HOUR: Duration = Duration::from_secs(3600);

#[derive(Clone, Debug)]
enum Op {
    Acquire(Vec<Item>),
    Release(Vec<Item>),
    Linger(Vec<Item>),
    Keep(Vec<Item>, Standing),
    Downgrade(Vec<Item>),
    Withdraw(Vec<Item>),
    ForceRelease(LockKey),
}

/// Items of one key or both. Every hold has its own owner, which never asks for another kind. Other
/// requests of a reader or writer may have the wrong kind, as after a downgrade whose answer was
/// lost.
fn items(mistaken: bool) -> impl Strategy<Value = Vec<Item>> {
    let kind = prop_oneof![Just(Kind::Mutex), Just(Kind::Read), Just(Kind::Read), Just(Kind::Write)];
    let one = (kind, 1..=OWNERS, any::<bool>());
    let item = move |name: &str, (kind, owner, wrong): (Kind, u64, bool)| {
        let (first, other) = match kind {
            Kind::Read => (0, Kind::Write),
            Kind::Write => (OWNERS, Kind::Read),
            _ => (2 * OWNERS, kind),
        };
        let owner = OwnerId::new(format!("c0ffee00-0000-4000-8000-000000000000:{}", first + owner));
        Item { key: key(name), kind: if mistaken && wrong { other } else { kind }, owner }
    };
    prop_oneof![
        (0..KEYS.len(), one.clone()).prop_map(move |(index, one)| vec![item(KEYS[index], one)]),
        (one.clone(), one).prop_map(move |(a, b)| vec![item(KEYS[0], a), item(KEYS[1], b)]),
    ]
}

/// A waiting writer would have an intent, which ends soon.
fn reader(item: Item) -> Item {
    let kind = if item.kind == Kind::Write { Kind::Read } else { item.kind };
    Item { kind, ..item }
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        5 => items(false).prop_map(Op::Acquire),
        3 => items(true).prop_map(Op::Release),
        1 => items(true).prop_map(Op::Linger),
        1 => items(true).prop_map(|items| Op::Keep(items, Standing::Holder)),
        1 => items(true).prop_map(|items| Op::Keep(items.into_iter().map(reader).collect(), Standing::Waiter)),
        2 => items(true).prop_map(Op::Downgrade),
        1 => items(true).prop_map(Op::Withdraw),
        1 => (0..KEYS.len()).prop_map(|index| Op::ForceRelease(key(KEYS[index]))),
    ]
}

/// Returns the answer of a store, without the numbers that differ.
async fn answer(store: &dyn LockStore, op: &Op) -> String {
    let wish = |items: &[Item]| Arc::new(AcquireRequest::new(items.to_vec(), HOUR, TIMEOUT));
    let kept = |kept: Vec<Renewed>| -> String {
        let word = |kept: &Renewed| match kept {
            Renewed::Unknown => "unknown",
            Renewed::Held => "renewed ",
            Renewed::Gone => "gone ",
            Renewed::Waiting(time) if *time > HOUR / 4 => "waiting long ",
            Renewed::Waiting(_) => "waiting ",
        };
        kept.iter().map(word).collect()
    };
    match op {
        Op::Acquire(items) => match store.acquire(wish(items)).await.unwrap() {
            Acquired::Granted(_) => "granted".to_owned(),
            Acquired::Busy(busy) => format!("{} is busy", busy.item),
        },
        Op::Release(items) => {
            format!("{:?}", store.release(Arc::new(release_request(items))).await.unwrap().held)
        }
        Op::Linger(items) => {
            let request = ReleaseRequest { linger: HOUR / 2, ..release_request(items) };
            format!("{:?}", store.release(Arc::new(request)).await.unwrap().held)
        }
        Op::Keep(items, standing) => {
            // It does not matter whether a waiter that has the key is renewed too: it is told to
            // acquire once more.
            let lease = if *standing == Standing::Waiter { Duration::from_secs(1) } else { HOUR };
            kept(store.renew(renew_request(items, lease, *standing)).await.unwrap())
        }
        Op::Downgrade(items) => {
            kept(store.downgrade(renew_request(items, HOUR, Standing::Holder)).await.unwrap())
        }
        Op::Withdraw(items) => {
            let sent = wish(items);
            sent.stamp(ServerTime::from_micros(1));
            assert_eq!(store.withdraw(sent).await.unwrap(), Withdrawn::Settled);
            String::new()
        }
        Op::ForceRelease(key) => store.force_release(key.clone()).await.unwrap().to_string(),
    }
}

/// Returns the holders and an approximate remaining time: after a linger it is half an hour.
async fn state(store: &dyn LockStore) -> Vec<(Option<Kind>, Vec<(OwnerId, u64)>, bool)> {
    let mut all = Vec::new();
    for name in KEYS {
        let LockStatus { kind, mut holders, remaining, .. } = store.status(key(name)).await.unwrap();
        holders.sort();
        all.push((kind, holders, remaining.is_some_and(|left| left > HOUR / 4 * 3)));
    }
    all
}

async fn run(server: &RedisServer, ops: &[Op]) {
    let redis = store(server);
    let model = MemoryStore::new("lock:");
    for (index, op) in ops.iter().enumerate() {
        let expected = answer(&*model, op).await;
        assert_eq!(answer(&redis, op).await, expected, "the answer to {op:?}, after {:?}", &ops[..index]);
        assert_eq!(state(&redis).await, state(&*model).await, "after {:?}", &ops[..=index]);
    }
    // Whatever has happened, only counters are left once all is given back.
    for name in KEYS {
        redis.force_release(key(name)).await.unwrap();
    }
    let left = server.keys().await;
    assert!(left.iter().all(|key| key.starts_with("redisson_lock_token")), "{left:?}, after {ops:?}");
}

#[test]
fn the_store_does_what_the_memory_store_does() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let server = RedisServer::start();
    let cases = ProptestConfig { cases: 100, failure_persistence: None, ..ProptestConfig::default() };
    proptest!(cases, |(ops in proptest::collection::vec(op(), 1..40))| {
        runtime.block_on(async {
            let _: () = server.ask(&["FLUSHALL"]).await;
            run(&server, &ops).await;
        });
    });
}
