//! The memory store against a model that is too simple to be wrong.
//!
//! Random steps of four owners on three keys. The model is a map that never throws anything away and knows nothing
//! of calendars, handles or purging; every answer of the store has to be the model's, and so has the state of every
//! key after every step.

use std::collections::BTreeMap;
use std::time::Duration;

use proptest::collection::vec;
use proptest::prelude::*;

use super::*;
use crate::store::{Item, KeepItem, Kind, ListenerPolicy, Takeover, TokenRange};
use crate::token::OwnerId;

const KEYS: [&str; 3] = ["a", "b", "c"];
const RETENTION_MS: u64 = 3_000;
const TIMEOUT_MS: u64 = 500;

#[derive(Clone, Debug)]
struct Wish {
    keys: Vec<usize>,
    owner: u8,
    lease_ms: u64,
    tokens: u32,
    /// So far above the server's clock, in microseconds.
    floor: Option<u64>,
}

#[derive(Clone, Debug)]
enum Op {
    Acquire(Wish),
    Release { keys: Vec<usize>, owner: u8, linger_ms: u64, then: Option<u8> },
    Keep { keys: Vec<usize>, owner: u8, lease_ms: u64 },
    Withdraw { keys: Vec<usize>, owner: u8 },
    ForceRelease(usize),
    Advance(u64),
}

fn keys() -> impl Strategy<Value = Vec<usize>> {
    let all = (0..KEYS.len()).collect::<Vec<_>>();
    proptest::sample::subsequence(all, 1..=KEYS.len()).prop_shuffle()
}

fn wish() -> impl Strategy<Value = Wish> {
    let floor = proptest::option::weighted(0.1, 0..10_000_000_u64);
    (keys(), 0..4_u8, 0..2_000_u64, 1..50_u32, floor)
        .prop_map(|(keys, owner, lease_ms, tokens, floor)| Wish { keys, owner, lease_ms, tokens, floor })
}

fn op() -> impl Strategy<Value = Op> {
    let linger = prop_oneof![3 => Just(0), 1 => 1..2_000_u64];
    prop_oneof![
        6 => wish().prop_map(Op::Acquire),
        4 => (keys(), 0..4_u8, linger, proptest::option::of(0..4_u8))
            .prop_map(|(keys, owner, linger_ms, then)| Op::Release { keys, owner, linger_ms, then }),
        2 => (keys(), 0..4_u8, 0..3_000_u64)
            .prop_map(|(keys, owner, lease_ms)| Op::Keep { keys, owner, lease_ms }),
        1 => (keys(), 0..4_u8).prop_map(|(keys, owner)| Op::Withdraw { keys, owner }),
        1 => (0..KEYS.len()).prop_map(Op::ForceRelease),
        4 => prop_oneof![4 => 1..1_500_u64, 1 => 1..10_000_u64].prop_map(Op::Advance),
    ]
}

/// Times are milliseconds since the start.
#[derive(Default)]
struct Model {
    now: u64,
    holds: BTreeMap<usize, (u8, u64)>,
    counters: BTreeMap<usize, (u64, u64)>,
}

impl Model {
    fn hold(&self, key: usize) -> Option<(u8, u64)> {
        self.holds.get(&key).copied().filter(|(_, ends)| *ends > self.now)
    }

    fn counter(&self, key: usize) -> Option<u64> {
        self.counters.get(&key).filter(|(_, ends)| *ends > self.now).map(|(top, _)| *top)
    }

    fn is_held_by(&self, key: usize, owner: u8) -> bool {
        self.hold(key).is_some_and(|(holder, _)| holder == owner)
    }

    /// The ranges, or the index of the first busy item.
    fn acquire(&mut self, wish: &Wish, floor: u64, server_micros: u64) -> Result<Vec<TokenRange>, usize> {
        let busy = |key: &usize| self.hold(*key).is_some_and(|(holder, _)| holder != wish.owner);
        if let Some(index) = wish.keys.iter().position(busy) {
            return Err(index);
        }
        let mut ranges = Vec::new();
        for &key in &wish.keys {
            let top = self.counter(key).unwrap_or(0).max(server_micros).max(floor) + u64::from(wish.tokens);
            ranges.push(TokenRange::ending_at(top, wish.tokens));
            self.counters.insert(key, (top, self.now + RETENTION_MS));
            let ends = self.hold(key).map_or(0, |(_, ends)| ends);
            self.holds.insert(key, (wish.owner, ends.max(self.now + wish.lease_ms)));
        }
        Ok(ranges)
    }
}

fn owner(number: u8) -> OwnerId {
    OwnerId::new(format!("owner:{number}"))
}

fn items(keys: &[usize], number: u8) -> Vec<Item> {
    let item = |key: &usize| Item {
        key: LockKey::new(KEYS[*key]).unwrap(),
        kind: Kind::Mutex,
        owner: owner(number),
    };
    keys.iter().map(item).collect()
}

/// The two side by side, and what has to hold whatever the model says.
struct Pair {
    store: Arc<MemoryStore>,
    model: Model,
    /// The last token granted of each key, also when its counter is gone.
    last: BTreeMap<usize, u64>,
}

impl Pair {
    fn server_micros(&self) -> u64 {
        let shared = &self.store.handle.shared;
        shared.server_time(shared.clock.now()).as_micros()
    }

    fn request(&self, wish: &Wish) -> Arc<AcquireRequest> {
        let floor = wish.floor.map_or(0, |ahead| self.server_micros() + ahead);
        let lease = Duration::from_millis(wish.lease_ms);
        let request =
            AcquireRequest::new(items(&wish.keys, wish.owner), lease, Duration::from_millis(TIMEOUT_MS));
        Arc::new(request.tokens(wish.tokens).token_floor(floor))
    }

    /// Tokens grow from grant to grant as long as the counter survives or is not ahead of the clock.
    fn check_growth(&mut self, keys: &[usize], before: &[Option<u64>], ranges: &[TokenRange]) {
        let clock = self.server_micros();
        for ((&key, before), range) in keys.iter().zip(before).zip(ranges) {
            let last = self.last.get(&key).copied().unwrap_or(0);
            if before.is_some() || last <= clock {
                assert!(range.first > last, "{range:?} after {last}");
            }
            self.last.insert(key, range.last);
        }
    }

    fn counters(&self, keys: &[usize]) -> Vec<Option<u64>> {
        keys.iter().map(|&key| self.model.counter(key)).collect()
    }

    async fn acquire(&mut self, wish: &Wish) {
        let before = self.counters(&wish.keys);
        let request = self.request(wish);
        let answer = self.store.acquire(Arc::clone(&request)).await.unwrap();
        let holds: Vec<_> = wish.keys.iter().map(|&key| self.model.hold(key)).collect();
        match (answer, self.model.acquire(wish, request.token_floor, self.server_micros())) {
            (Acquired::Granted(granted), Ok(ranges)) => {
                assert_eq!(granted.tokens, ranges);
                self.check_growth(&wish.keys, &before, &ranges);
            }
            (Acquired::Busy(busy), Err(index)) => {
                assert_eq!(busy.item, index);
                let (_, ends) = holds[index].unwrap();
                assert_eq!(busy.remaining, Duration::from_millis(ends - self.model.now));
            }
            (answer, expected) => panic!("{answer:?} instead of {expected:?}"),
        }
    }

    async fn release(&mut self, keys: &[usize], by: u8, linger_ms: u64, then: Option<u8>) {
        let before = self.counters(keys);
        let next =
            then.map(|owner| Wish { keys: keys.to_vec(), owner, lease_ms: 700, tokens: 3, floor: None });
        let then = next
            .as_ref()
            .map(|next| Takeover { request: self.request(next), listeners: ListenerPolicy::Respect });
        let linger = Duration::from_millis(linger_ms);
        let request = ReleaseRequest {
            items: items(keys, by),
            linger,
            then,
            own_watches: 0,
            timeout: Duration::from_millis(TIMEOUT_MS),
        };
        let released = self.store.release(Arc::new(request)).await.unwrap();

        let held: Vec<_> = keys.iter().map(|&key| self.model.is_held_by(key, by)).collect();
        assert_eq!(released.held, held);
        for &key in keys {
            if let Some((holder, ends)) = self.model.hold(key)
                && holder == by
            {
                self.model.holds.insert(key, (holder, ends.min(self.model.now + linger_ms)));
            }
        }
        let micros = self.server_micros();
        let expected = match next {
            Some(next) if linger_ms == 0 && held.iter().all(|held| *held) => {
                Some(self.model.acquire(&next, 0, micros).unwrap())
            }
            _ => None,
        };
        if let Some(ranges) = &expected {
            self.check_growth(keys, &before, ranges);
        }
        assert_eq!(released.then.map(|granted| granted.tokens), expected);
    }

    async fn keep(&mut self, keys: &[usize], by: u8, lease_ms: u64) {
        let lease = Duration::from_millis(lease_ms);
        let items = items(keys, by).into_iter().map(|item| KeepItem::hold(item, lease)).collect();
        let request = KeepRequest { items, timeout: Duration::from_millis(TIMEOUT_MS) };
        let kept = self.store.keep(Arc::new(request)).await.unwrap();
        for (&key, kept) in keys.iter().zip(kept) {
            let held = self.model.is_held_by(key, by);
            assert_eq!(kept, if held { Kept::Renewed } else { Kept::Gone });
            if held {
                let (_, ends) = self.model.holds[&key];
                self.model.holds.insert(key, (by, ends.max(self.model.now + lease_ms)));
            }
        }
    }

    async fn step(&mut self, op: &Op) {
        match op {
            Op::Acquire(wish) => self.acquire(wish).await,
            Op::Release { keys, owner, linger_ms, then } => {
                self.release(keys, *owner, *linger_ms, *then).await;
            }
            Op::Keep { keys, owner, lease_ms } => self.keep(keys, *owner, *lease_ms).await,
            Op::Withdraw { keys, owner } => {
                let wish = Wish { keys: keys.clone(), owner: *owner, lease_ms: 0, tokens: 1, floor: None };
                let request = self.request(&wish);
                assert_eq!(self.store.withdraw(Arc::clone(&request)).await.unwrap(), Withdrawn::Settled);
                for key in keys {
                    if self.model.is_held_by(*key, *owner) {
                        self.model.holds.remove(key);
                    }
                }
            }
            Op::ForceRelease(key) => {
                let freed = self.store.force_release(LockKey::new(KEYS[*key]).unwrap()).await.unwrap();
                assert_eq!(freed, self.model.hold(*key).is_some());
                self.model.holds.remove(key);
            }
            Op::Advance(ms) => {
                tokio::time::advance(Duration::from_millis(*ms)).await;
                self.model.now += ms;
            }
        }
    }

    /// Every key is held by whom the model says, for as long as it says: exclusion, and leases that only grow.
    async fn compare(&self) {
        for (index, name) in KEYS.iter().enumerate() {
            let status = self.store.status(LockKey::new(name).unwrap()).await.unwrap();
            let hold = self.model.hold(index);
            let holders: Vec<_> = hold.iter().map(|(holder, _)| (owner(*holder), 1)).collect();
            assert_eq!(status.holders, holders, "{name}");
            let remaining = hold.map(|(_, ends)| Duration::from_millis(ends - self.model.now));
            assert_eq!(status.remaining, remaining, "{name}");
            assert_eq!(status.last_token.map(u64::from), self.model.counter(index), "{name}");
        }
    }
}

async fn run(ops: &[Op]) {
    let store = MemoryStore::new("lock:", TokenRetention::For(Duration::from_millis(RETENTION_MS)));
    let mut pair = Pair { store, model: Model::default(), last: BTreeMap::new() };
    for op in ops {
        pair.step(op).await;
        pair.compare().await;
    }
    // Whatever has happened, nothing is left once everything has ended.
    tokio::time::advance(Duration::from_secs(60)).await;
    for _ in 0..KEYS.len() {
        pair.store.status(LockKey::new("another").unwrap()).await.unwrap();
    }
    assert_eq!(pair.store.handle.shared.table().sizes(), (0, 0, 0));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_store_does_what_the_model_does(ops in vec(op(), 1..80)) {
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
        runtime.block_on(run(&ops));
    }
}
