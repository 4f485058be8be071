//! [`Pair`]: the store and the model side by side, and the rules that hold whatever the model says.

use std::collections::BTreeMap;

use lock_core::store::{
    AcquireRequest, Acquired, Few, Item, ListenerPolicy, Notice, ReleaseRequest, RenewItem, RenewRequest,
    Renewed, Rivals, ScanRequest, Standing, Takeover, TokenRange, Watch,
};
use lock_core::{LockKey, OwnerId};

use super::plain::{Model, Waiter};
use super::*;

pub(super) struct Pair {
    store: Arc<MemoryStore>,
    model: Model,
    /// The last token granted for each key, even after its counter is gone.
    last: BTreeMap<usize, u64>,
    /// The watches of queued waiters.
    waiters: BTreeMap<(usize, u8), Watch>,
    /// Watches of another handle: one for each key and each of these kinds.
    public: BTreeMap<(usize, bool), Watch>,
    /// The first in the queue when the store last looked.
    heads: BTreeMap<usize, u8>,
}

/// The effects of a step that watches have to hear of.
#[derive(Default)]
struct Noise {
    /// Keys with a hold that has ended.
    ended: Vec<usize>,
    /// Keys whose hold now ends sooner.
    nearer: Vec<usize>,
    /// Keys that readers may try.
    readable: Vec<usize>,
    /// Keys whose queue was looked at.
    looked: Vec<usize>,
    /// Whether the step may grant keys to waiters.
    grants: bool,
    /// The owner that made the step.
    by: Option<u8>,
}

fn id(number: u8) -> OwnerId {
    OwnerId::new(format!("owner:{number}"))
}

fn key(number: usize) -> LockKey {
    LockKey::new(KEYS[number]).unwrap()
}

fn places(items: &[Place], owner: u8) -> Vec<Item> {
    items.iter().map(|(number, kind)| Item { key: key(*number), kind: *kind, owner: id(owner) }).collect()
}

const TIMEOUT: Duration = Duration::from_millis(TIMEOUT_MS);

fn plain(items: &[Place], owner: u8) -> Arc<AcquireRequest> {
    Arc::new(AcquireRequest::new(places(items, owner), Duration::ZERO, TIMEOUT))
}

fn kept(items: &[Place], owner: u8, lease_ms: u64, standing: Standing) -> Arc<RenewRequest> {
    let lease = Duration::from_millis(lease_ms);
    let items = places(items, owner).into_iter().map(|item| RenewItem {
        item,
        lease,
        retention: RETENTION,
        standing,
    });
    Arc::new(RenewRequest { items: items.collect(), timeout: TIMEOUT })
}

impl Pair {
    pub(super) async fn new(store: Arc<MemoryStore>, other: &MemoryStore) -> Self {
        let mut public = BTreeMap::new();
        for number in 0..KEYS.len() {
            for (reads, kind) in [(false, Kind::Mutex), (true, Kind::Read)] {
                public.insert((number, reads), other.watch(plain(&[(number, kind)], 99)).await.unwrap());
            }
        }
        let (last, waiters, heads) = Default::default();
        Self { store, model: Model::default(), last, waiters, public, heads }
    }

    fn server_micros(&self) -> u64 {
        self.store.records.store().now().as_micros()
    }

    fn left(&self, until: u64) -> Duration {
        Duration::from_millis(until - self.model.now)
    }

    /// Checks that tokens grow from grant to grant, as long as the counter survives or is not ahead
    /// of the clock.
    fn check_growth(&mut self, number: usize, before: Option<u64>, range: TokenRange) {
        let last = self.last.get(&number).copied().unwrap_or(0);
        if before.is_some() || last <= self.server_micros() {
            assert!(range.first > last, "{range:?} after {last}");
        }
        self.last.insert(number, range.last);
    }

    fn check_all(&mut self, items: &[Place], before: &[Option<u64>], ranges: &[TokenRange]) {
        for (((number, _), before), range) in items.iter().zip(before).zip(ranges) {
            self.check_growth(*number, *before, *range);
        }
    }

    fn counters(&mut self, items: &[Place]) -> Vec<Option<u64>> {
        items.iter().map(|(number, _)| self.model.counter(*number)).collect()
    }

    async fn acquire(&mut self, wish: &Wish, noise: &mut Noise) {
        let micros = self.server_micros();
        let floor = wish.floor.map_or(0, |ahead| micros + ahead);
        let lease = Duration::from_millis(wish.lease_ms);
        let request = AcquireRequest::new(places(&wish.items, wish.owner), lease, TIMEOUT);
        let mut request = request.tokens(wish.tokens).above(floor).retention(RETENTION);
        if wish.waits {
            request = request.queued(Duration::from_secs(60));
        }
        let before = self.counters(&wish.items);
        let answer = self.store.acquire(Arc::new(request)).await.unwrap();
        match (answer, self.model.acquire(wish, floor, micros)) {
            (Acquired::Granted(granted), Ok(ranges)) => {
                assert_eq!(granted.tokens, ranges);
                self.check_all(&wish.items, &before, &ranges);
            }
            (Acquired::Busy(busy), Err((index, until))) => {
                assert_eq!((busy.item, busy.remaining), (index, Some(self.left(until))));
            }
            (answer, expected) => panic!("{answer:?} instead of {expected:?}"),
        }
        noise
            .looked
            .extend(wish.items.iter().filter(|(_, kind)| *kind == Kind::Fair).map(|(number, _)| *number));
    }

    /// Ends the owner's hold in the model.
    fn end(&mut self, (number, kind): Place, owner: u8, linger_ms: u64, noise: &mut Noise) -> bool {
        if !self.model.has(number, kind, owner) {
            return false;
        }
        let soonest = self.model.now + linger_ms;
        self.model.change(number, kind, owner, |ends| ends.min(soonest));
        if linger_ms == 0 { &mut noise.ended } else { &mut noise.nearer }.push(number);
        true
    }

    async fn release(&mut self, items: &[Place], owner: u8, linger_ms: u64, noise: &mut Noise) {
        let items = items.to_vec();
        let linger = Duration::from_millis(linger_ms);
        let places = places(&items, owner);
        let request =
            ReleaseRequest { items: places.into(), linger, then: None, own_watch: None, timeout: TIMEOUT };
        let released = self.store.release(Arc::new(request)).await.unwrap();
        let held: Vec<_> = items.iter().map(|place| self.end(*place, owner, linger_ms, noise)).collect();
        assert_eq!((&*released.held, released.then), (&*held, None));
    }

    async fn take_over(&mut self, keys: &[usize], owner: u8, next: u8, respect: bool, noise: &mut Noise) {
        let items: Vec<_> = keys.iter().map(|number| (*number, Kind::Mutex)).collect();
        let lease = Duration::from_millis(700);
        let wish =
            Wish { items: items.clone(), owner: next, lease_ms: 700, tokens: 3, floor: None, waits: false };
        let request = AcquireRequest::new(places(&items, next), lease, TIMEOUT);
        let request = Arc::new(request.tokens(3).retention(RETENTION));
        let listeners = if respect { ListenerPolicy::Respect } else { ListenerPolicy::Ignore };
        let release = ReleaseRequest {
            items: places(&items, owner).into(),
            linger: Duration::ZERO,
            then: Some(Takeover { request, listeners }),
            own_watch: None,
            timeout: TIMEOUT,
        };
        let before = self.counters(&items);
        let micros = self.server_micros();
        let released = self.store.release(Arc::new(release)).await.unwrap();
        let held: Vec<_> = items.iter().map(|place| self.end(*place, owner, 0, noise)).collect();
        let freed = held.iter().all(|held| *held);
        assert_eq!((&*released.held, released.rivals == Rivals::Some), (&*held, held.contains(&true)));
        // The other handle listens all the time.
        let expected = (freed && !respect).then(|| self.model.acquire(&wish, 0, micros).unwrap());
        if let Some(ranges) = &expected {
            self.check_all(&items, &before, ranges);
            noise.ended.clear();
        }
        assert_eq!(released.then.map(|granted| granted.tokens), expected.map(Few::from));
    }

    async fn renew(&mut self, items: &[Place], owner: u8, lease_ms: u64) {
        let answers = self.store.renew(kept(items, owner, lease_ms, Standing::Holder)).await.unwrap();
        for (&(number, kind), answer) in items.iter().zip(answers) {
            let held = self.model.has(number, kind, owner);
            assert_eq!(answer, if held { Renewed::Held } else { Renewed::Gone });
            let least = self.model.now + lease_ms;
            self.model.change(number, kind, owner, |ends| ends.max(least));
            if held {
                self.model.lengthen_counter(number, lease_ms);
            }
        }
    }

    async fn keep_waiting(&mut self, items: &[Place], owner: u8, noise: &mut Noise) {
        let answers = self.store.renew(kept(items, owner, 700, Standing::Waiter)).await.unwrap();
        for (&(number, kind), answer) in items.iter().zip(answers) {
            if self.model.has(number, kind, owner) {
                assert_eq!(answer, Renewed::Held);
                continue;
            }
            if kind == Kind::Fair {
                noise.looked.push(number);
                if !self.model.keep_place(number, owner) {
                    assert_eq!(answer, Renewed::Gone);
                    continue;
                }
            }
            if kind == Kind::Write && self.model.keep_intent(number, owner) {
                assert_eq!(answer, Renewed::Waiting(Duration::from_millis(1)));
                continue;
            }
            let until = self.model.refuses(number, kind, owner);
            let until = until.map(|until| self.model.turn(number, kind, owner, until));
            let left = until.map(|until| self.left(until));
            assert_eq!(answer, Renewed::Waiting(left.unwrap_or(Duration::from_millis(1))));
        }
    }

    async fn downgrade(&mut self, items: &[Place], owner: u8, lease_ms: u64, noise: &mut Noise) {
        let answers = self.store.downgrade(kept(items, owner, lease_ms, Standing::Holder)).await.unwrap();
        for (&(number, _), answer) in items.iter().zip(answers) {
            let held = self.model.has(number, Kind::Write, owner);
            assert_eq!(answer, if held { Renewed::Held } else { Renewed::Gone });
            if self.model.downgrade(number, owner) {
                noise.readable.push(number);
            }
            let least = self.model.now + lease_ms;
            self.model.change(number, Kind::Read, owner, |ends| ends.max(least));
            if held {
                self.model.lengthen_counter(number, lease_ms);
            }
        }
    }

    async fn withdraw(&mut self, items: &[Place], owner: u8, noise: &mut Noise) {
        assert_eq!(self.store.withdraw(plain(items, owner)).await.unwrap(), Withdrawn::Settled);
        for &(number, kind) in items {
            if kind == Kind::Fair {
                self.model.leave(number, owner);
                noise.looked.push(number);
            }
            let ended = self.end((number, kind), owner, 0, noise);
            if !ended && kind == Kind::Write && self.model.end_intent(number, owner) {
                noise.readable.push(number);
            }
        }
    }

    pub(super) async fn step(&mut self, op: &Op) {
        let mut noise = Noise::default();
        match op {
            Op::Acquire(wish) => {
                noise.by = Some(wish.owner);
                self.acquire(wish, &mut noise).await;
            }
            Op::Release { items, owner, linger_ms } => {
                noise.grants = true;
                self.release(items, *owner, *linger_ms, &mut noise).await;
            }
            Op::Takeover { keys, owner, next, respect } => {
                noise.grants = true;
                self.take_over(keys, *owner, *next, *respect, &mut noise).await;
            }
            Op::Keep { items, owner, lease_ms } => self.renew(items, *owner, *lease_ms).await,
            Op::KeepWaiting { items, owner } => {
                noise.by = Some(*owner);
                self.keep_waiting(items, *owner, &mut noise).await;
            }
            Op::Downgrade { items, owner, lease_ms } => {
                self.downgrade(items, *owner, *lease_ms, &mut noise).await;
            }
            Op::Withdraw { items, owner } => {
                noise.grants = true;
                self.withdraw(items, *owner, &mut noise).await;
            }
            Op::ForceRelease(number) => {
                noise.grants = true;
                let freed = self.store.force_release(key(*number)).await.unwrap();
                assert_eq!(freed, self.model.ends(*number).is_some());
                self.model.clear(*number);
                noise.ended.extend(freed.then_some(*number));
            }
            Op::Listen { key, owner, on: true } => {
                let watch = self.store.watch(plain(&[(*key, Kind::Fair)], *owner)).await.unwrap();
                self.waiters.insert((*key, *owner), watch);
            }
            Op::Listen { key, owner, on: false } => drop(self.waiters.remove(&(*key, *owner))),
            Op::Advance(ms) => {
                tokio::time::advance(Duration::from_millis(*ms)).await;
                self.model.now += ms;
            }
        }
        self.hear(&noise);
    }

    fn hear(&mut self, noise: &Noise) {
        for number in 0..KEYS.len() {
            self.hear_in_line(number, noise);
            let ended = noise.ended.contains(&number) && self.model.ends(number).is_none();
            let told = ended || noise.nearer.contains(&number);
            for (reads, told) in [(false, told), (true, told || noise.readable.contains(&number))] {
                let watch = self.public.get_mut(&(number, reads)).unwrap();
                assert_eq!(watch.try_notice(), told.then_some(Notice::Retry), "{number}, reads: {reads}");
                assert_eq!(watch.try_notice(), None);
            }
        }
    }

    /// Checks what the waiters in the queue of a key hear, and what the first of them is granted.
    fn hear_in_line(&mut self, number: usize, noise: &Noise) {
        let head = self.model.queue(number).first().copied();
        let free = self.model.ends(number).is_none();
        let ended = noise.ended.contains(&number);
        let looked = ended || noise.looked.contains(&number);
        let before = self.heads.get(&number).copied();
        let is_new =
            |head: &Waiter| before.is_some_and(|before| before != head.owner) && noise.by != Some(head.owner);
        let mut granted = false;
        for owner in 0..OWNERS {
            let Some(watch) = self.waiters.get_mut(&(number, owner)) else { continue };
            let heard: Vec<_> = std::iter::from_fn(|| watch.try_notice()).collect();
            let first = head.filter(|head| head.owner == owner);
            match heard[..] {
                [] => {
                    let has_to = |head: &Waiter| free && (ended || looked && is_new(head));
                    assert!(!first.as_ref().is_some_and(has_to), "{owner} has to hear of {number}");
                }
                [Notice::Retry] => {
                    let nearer = noise.nearer.contains(&number);
                    assert!(first.is_some() && (free || nearer), "{owner} of {number}");
                    assert!(!(ended && first.is_some_and(|head| head.direct)), "it was to be granted");
                }
                [Notice::Granted { token, moment }] => {
                    assert!(
                        first.is_some_and(|head| head.direct) && free && noise.grants,
                        "{owner} of {number}"
                    );
                    let micros = self.server_micros();
                    let before = self.model.counter(number);
                    let (_, range) = self.model.grant_directly(number, micros);
                    assert_eq!((token.get(), moment.get()), (range.last, micros));
                    self.check_growth(number, before, range);
                    granted = true;
                }
                _ => panic!("{owner} of {number} has heard {heard:?}"),
            }
        }
        if looked || granted {
            match self.model.queue(number).first() {
                Some(head) => self.heads.insert(number, head.owner),
                None => self.heads.remove(&number),
            };
        }
    }

    /// Checks that every key is held by the owners in the model, and for as long: exclusion, and
    /// leases that only grow.
    pub(super) async fn compare(&mut self) {
        for number in 0..KEYS.len() {
            let status = self.store.status(key(number)).await.unwrap();
            let (kind, mut holders) = self.model.holders(number);
            // Readers are in no particular order.
            let mut found = status.holders.clone();
            let from = usize::from(kind == Some(Kind::Write));
            found[from..].sort_unstable();
            holders[from..].sort_unstable();
            let holders: Vec<_> = holders.into_iter().map(|owner| (id(owner), 1)).collect();
            assert_eq!((status.kind, found), (kind, holders), "{number}");
            let remaining = self.model.ends(number).map(|until| self.left(until));
            assert_eq!(status.remaining, remaining, "{number}");
            assert_eq!(status.last_token.map(u64::from), self.model.counter(number), "{number}");
            let queued = self.model.queue(number).len();
            // The other handle listens to every key.
            assert_eq!(status.waiters, u64::try_from(queued.max(1)).unwrap(), "{number}");
        }
        let scan = ScanRequest { prefix: String::new(), cursor: None, timeout: TIMEOUT };
        let found = self.store.scan(scan).await.unwrap();
        let held = (0..KEYS.len()).filter(|number| self.model.ends(*number).is_some()).count();
        assert_eq!((found.locks.len(), found.next), (held, None));
    }
}
