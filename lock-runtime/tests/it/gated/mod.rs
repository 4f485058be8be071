//! A memory store whose every call stops twice: before it takes effect, and before its answer
//! arrives. The test decides which call goes on, when, in which order, and which one is lost.

#![allow(dead_code, reason = "each test program uses some of it")]

pub(crate) mod leaks;
pub(crate) mod polled;
pub(crate) mod random;
pub(crate) mod scenes;
pub(crate) mod schedule;

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use lock_core::store::{
    AcquireRequest, Acquired, BoxFuture, Forward, Item, Kind, LockStore, ReleaseRequest, Released, Rivals,
    ServerTime, StoreError, StoreErrorKind,
};
use lock_runtime::{LockKey, OwnerId};
use tokio::sync::oneshot;
use tokio::time::Instant;

/// The decision about a call that stopped at the gate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    Pass,
    /// A request is refused without effect; an answer is lost.
    Fail,
}

/// The decision about a call that arrives while the gate is open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Plan {
    Pass,
    Fail,
    /// It goes on after this many milliseconds.
    Delay(u64),
}

/// The stage of a call that stops at the gate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    Request,
    Answer,
}

#[derive(Debug)]
struct Stopped {
    call: &'static str,
    stage: Stage,
    go: oneshot::Sender<Verdict>,
}

/// The calls that stopped at the gate, in the order of arrival.
#[derive(Debug, Default)]
pub(crate) struct Gate(Mutex<Standing>);

#[derive(Debug, Default)]
struct Standing {
    shut: bool,
    last: u64,
    plans: VecDeque<Plan>,
    stopped: BTreeMap<u64, Stopped>,
}

impl Gate {
    /// From now on, every call stops.
    pub(crate) fn shut(&self) {
        self.0.lock().unwrap().shut = true;
    }

    /// Lets the stopped calls go on, and stops no further ones.
    pub(crate) fn open(&self) {
        let mut standing = self.0.lock().unwrap();
        standing.shut = false;
        for (_, stopped) in std::mem::take(&mut standing.stopped) {
            let _ = stopped.go.send(Verdict::Pass);
        }
    }

    /// Returns the stopped calls by number, except those that were dropped meanwhile.
    pub(crate) fn stopped(&self) -> Vec<(u64, &'static str, Stage)> {
        let mut standing = self.0.lock().unwrap();
        standing.stopped.retain(|_, stopped| !stopped.go.is_closed());
        standing.stopped.iter().map(|(&id, stopped)| (id, stopped.call, stopped.stage)).collect()
    }

    pub(crate) fn let_go(&self, id: u64, verdict: Verdict) {
        let stopped = self.0.lock().unwrap().stopped.remove(&id).expect("it stands at the gate");
        let _ = stopped.go.send(verdict);
    }

    /// Plans what happens to the next arrival.
    pub(crate) fn plan(&self, plan: Plan) {
        self.0.lock().unwrap().plans.push_back(plan);
    }

    pub(crate) fn forget_plans(&self) {
        self.0.lock().unwrap().plans.clear();
    }

    async fn pass(&self, call: &'static str, stage: Stage) -> Verdict {
        let plan = self.0.lock().unwrap().plans.pop_front();
        match plan {
            Some(Plan::Fail) => return Verdict::Fail,
            Some(Plan::Delay(ms)) => tokio::time::sleep(Duration::from_millis(ms)).await,
            Some(Plan::Pass) | None => {}
        }
        let opened = {
            let mut standing = self.0.lock().unwrap();
            if !standing.shut {
                return Verdict::Pass;
            }
            let (go, opened) = oneshot::channel();
            standing.last += 1;
            let id = standing.last;
            standing.stopped.insert(id, Stopped { call, stage, go });
            opened
        };
        opened.await.expect("the gate outlives the test")
    }
}

/// The server's time, which a client estimates from an earlier answer.
#[derive(Clone, Copy, Debug)]
struct ServerClock {
    then: Instant,
    time: ServerTime,
}

impl ServerClock {
    async fn ask(store: &Arc<dyn LockStore>) -> Self {
        let item = Item {
            key: LockKey::new("server time").unwrap(),
            kind: Kind::Mutex,
            owner: OwnerId::new("clock"),
        };
        let second = Duration::from_secs(1);
        let request = Arc::new(AcquireRequest::new(vec![item.clone()], second, second));
        let Acquired::Granted(granted) = store.acquire(request).await.unwrap() else { panic!("held") };
        let request = ReleaseRequest {
            items: [item].into(),
            linger: Duration::ZERO,
            then: None,
            own_watch: None,
            timeout: second,
        };
        store.release(Arc::new(request)).await.unwrap();
        Self { then: Instant::now(), time: ServerTime::from_micros(granted.moment.get()) }
    }

    fn estimate(self) -> ServerTime {
        let passed = u64::try_from(self.then.elapsed().as_micros()).unwrap();
        ServerTime::from_micros(self.time.as_micros() + passed)
    }
}

/// A bug that a store may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Bug {
    /// Releases are answered but not carried out.
    LosesReleases,
    /// Every request for a key is granted.
    StealsKeys,
}

/// A store behind a [`Gate`]. Like a server, it refuses requests that arrive too late.
pub(crate) struct GatedStore {
    pub(crate) inner: Arc<dyn LockStore>,
    pub(crate) gate: Arc<Gate>,
    /// A deliberate bug, which the tests must find.
    bug: Mutex<Option<Bug>>,
    clock: ServerClock,
}

impl GatedStore {
    pub(crate) async fn new(inner: Arc<dyn LockStore>) -> Arc<Self> {
        let clock = ServerClock::ask(&inner).await;
        Arc::new(Self { inner, gate: Arc::default(), bug: Mutex::default(), clock })
    }

    pub(crate) fn put_in(&self, bug: Bug) {
        *self.bug.lock().unwrap() = Some(bug);
    }

    fn has(&self, bug: Bug) -> bool {
        *self.bug.lock().unwrap() == Some(bug)
    }

    /// Stamps the request when it is sent, and stops it before `work` and after it.
    fn call<T: Send + 'static>(
        &self,
        name: &'static str,
        taking: Option<&Arc<AcquireRequest>>,
        work: impl FnOnce(Arc<dyn LockStore>, bool) -> BoxFuture<Result<T, StoreError>> + Send + 'static,
    ) -> BoxFuture<Result<T, StoreError>> {
        let (inner, gate, clock, taking) =
            (Arc::clone(&self.inner), Arc::clone(&self.gate), self.clock, taking.cloned());
        Box::pin(async move {
            let latest = taking.map(|request| request.stamp(clock.estimate()));
            if gate.pass(name, Stage::Request).await == Verdict::Fail {
                return Err(StoreError::new(StoreErrorKind::Unreachable, "refused at the gate"));
            }
            let late = latest.is_some_and(|latest| clock.estimate() > latest);
            let answer = work(inner, late).await;
            if gate.pass(name, Stage::Answer).await == Verdict::Fail {
                return Err(StoreError::new(StoreErrorKind::Unanswered, "lost at the gate"));
            }
            answer
        })
    }
}

impl Forward for GatedStore {
    fn inner(&self) -> &dyn LockStore {
        &*self.inner
    }

    fn acquire(&self, request: Arc<AcquireRequest>) -> BoxFuture<Result<Acquired, StoreError>> {
        let steals = self.has(Bug::StealsKeys);
        self.call("acquire", Some(&Arc::clone(&request)), move |inner, late| {
            if late {
                return Box::pin(async { Err(StoreError::new(StoreErrorKind::TooLate, "too late")) });
            }
            if !steals {
                return inner.acquire(request);
            }
            Box::pin(async move {
                inner.force_release(request.items[0].key.clone()).await?;
                inner.acquire(request).await
            })
        })
    }

    fn release(&self, request: Arc<ReleaseRequest>) -> BoxFuture<Result<Released, StoreError>> {
        if self.has(Bug::LosesReleases) {
            let held = vec![true; request.items.len()].into();
            let released = Released { held, rivals: Rivals::None, then: None };
            return Box::pin(async { Ok(released) });
        }
        let takeover = request.then.as_ref().map(|takeover| Arc::clone(&takeover.request));
        self.call("release", takeover.as_ref(), move |inner, late| {
            let then = request.then.clone().filter(|_| !late);
            inner.release(Arc::new(ReleaseRequest { then, ..ReleaseRequest::clone(&request) }))
        })
    }

    fn around<T: Send + 'static>(
        &self,
        step: &'static str,
        call: BoxFuture<Result<T, StoreError>>,
    ) -> BoxFuture<Result<T, StoreError>> {
        self.call(step, None, |_, _| call)
    }

    fn check(&self) -> BoxFuture<Result<(), StoreError>> {
        self.inner.check()
    }
}

impl fmt::Debug for GatedStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GatedStore").field("inner", &self.inner).finish_non_exhaustive()
    }
}
