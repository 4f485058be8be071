//! [`Client`]: the store as one process uses it, over the simulated network.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, Mutex};
use std::time::Duration;

use lock_core::store::{
    Abilities, AcquireRequest, Acquired, BoxFuture, Busy, Granted, Item, Kind, LockStatus, LockStore,
    MarkRequest, Marked, QuorumMember, ReleaseRequest, Released, RenewRequest, Renewed, Rivals, ServerTime,
    StoreError, StoreErrorKind, TokenRange, Watch, Withdrawn,
};
use lock_runtime::testing::simulation::{ServerHandle, SimClock};
use lock_runtime::{LockKey, testing};
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

use super::Lie;
use super::listen::{Registration, listen};
use super::version::Version;
use super::world::{State, World};

/// Maximum number of pending notices in one watch.
const QUEUE: usize = 16;

/// Time-out of calls that are not about a lock.
const ADMIN: Duration = Duration::from_millis(500);

/// Its features: those of the memory store, without scans.
static ABILITIES: LazyLock<Abilities> =
    LazyLock::new(|| Abilities { scan: false, ..testing::memory_store().abilities().clone() });

type Work<T> = Arc<dyn Fn(&ServerHandle, ServerTime) -> Result<T, StoreError> + Send + Sync>;
type Reply<T> = oneshot::Sender<(ServerTime, Result<T, StoreError>)>;

/// A process's connection to one server, and its estimate of that server's clock.
pub(super) struct Client {
    pub(super) world: Arc<World>,
    pub(super) process: usize,
    pub(super) server: usize,
    clock: SimClock,
    /// 0 until the process is killed, which closes its connections.
    pub(super) killed: Arc<Version>,
    connection: Mutex<(u64, ServerHandle)>,
    /// The server's time in an answer, and the process's time when it sent the request.
    known: Mutex<(ServerTime, u64)>,
    last_up: Mutex<Instant>,
    last_down: Mutex<Instant>,
    lies: AtomicU64,
}

/// A shared [`Client`].
#[derive(Clone)]
pub(super) struct SimStore(pub(super) Arc<Client>);

impl SimStore {
    pub(super) fn new(
        world: &Arc<World>,
        process: usize,
        server: usize,
        clock: SimClock,
        killed: Arc<Version>,
    ) -> Self {
        let there = &world.servers[server];
        let data = there.data();
        Self(Arc::new(Client {
            world: Arc::clone(world),
            process,
            server,
            clock,
            killed,
            connection: Mutex::new((there.generation(), data.connect())),
            known: Mutex::new((data.time(), clock.nanos())),
            last_up: Mutex::new(Instant::now()),
            last_down: Mutex::new(Instant::now()),
            lies: AtomicU64::new(0),
        }))
    }

    fn call<T: Send + 'static>(
        &self,
        timeout: Duration,
        taking: Option<Arc<AcquireRequest>>,
        keys: Vec<LockKey>,
        work: impl Fn(&ServerHandle, ServerTime) -> Result<T, StoreError> + Send + Sync + 'static,
    ) -> BoxFuture<Result<T, StoreError>> {
        self.call_in(Copies::Two, timeout, taking, keys, work)
    }

    fn call_in<T: Send + 'static>(
        &self,
        copies: Copies,
        timeout: Duration,
        taking: Option<Arc<AcquireRequest>>,
        keys: Vec<LockKey>,
        work: impl Fn(&ServerHandle, ServerTime) -> Result<T, StoreError> + Send + Sync + 'static,
    ) -> BoxFuture<Result<T, StoreError>> {
        let client = Arc::clone(&self.0);
        let work: Work<T> = Arc::new(work);
        Box::pin(async move {
            let mut tries = 0;
            loop {
                tries += 1;
                let sent = client.clock.nanos();
                let stamped = taking.as_ref().map(|request| request.stamp(client.estimate(sent)));
                let (reply, answer) = oneshot::channel();
                client.send(reply, stamped, &keys, &work, copies);
                let result = match tokio::time::timeout(timeout, answer).await {
                    Ok(Ok((time, result))) => {
                        client.observe(time, sent);
                        result
                    }
                    Ok(Err(_)) => Err(error(StoreErrorKind::Unanswered, "the connection broke")),
                    Err(_) => Err(error(StoreErrorKind::Unanswered, "no answer")),
                };
                match result {
                    // After a jump of the clock, the refusal has brought the new time.
                    Err(error) if error.kind() == StoreErrorKind::TooLate && tries == 1 => {}
                    Err(_) if client.world.lies(Lie::WrongError) => {
                        return Err(error(StoreErrorKind::Denied, "not you"));
                    }
                    result => return result,
                }
            }
        })
    }

    /// Returns true for one in `once_in` calls, if this lie is told.
    fn lies(&self, lie: Lie, once_in: u64) -> bool {
        self.0.world.lies(lie) && self.0.lies.fetch_add(1, Ordering::Relaxed) % once_in == once_in - 1
    }
}

impl Client {
    fn estimate(&self, now: u64) -> ServerTime {
        let (time, sent) = *self.known.lock().unwrap();
        ServerTime::from_micros(time.as_micros() + now.saturating_sub(sent) / 1000)
    }

    fn observe(&self, time: ServerTime, sent: u64) {
        let mut known = self.known.lock().unwrap();
        if known.1 <= sent {
            *known = (time, sent);
        }
    }

    /// Returns a connection to the server as it is now.
    pub(super) fn handle(&self) -> ServerHandle {
        let server = &self.world.servers[self.server];
        let mut connection = self.connection.lock().unwrap();
        if connection.0 != server.generation() {
            *connection = (server.generation(), server.data().connect());
        }
        connection.1.clone()
    }

    /// Returns when a message that is sent now arrives. Messages in one direction do not overtake
    /// each other.
    fn arrives(&self, last: &Mutex<Instant>) -> Instant {
        let mut last = last.lock().unwrap();
        *last = (*last).max(Instant::now() + self.world.way());
        *last
    }

    pub(super) fn arrives_here(&self) -> Instant {
        self.arrives(&self.last_down)
    }

    fn send<T: Send + 'static>(
        self: &Arc<Self>,
        reply: Reply<T>,
        latest: Option<ServerTime>,
        keys: &[LockKey],
        work: &Work<T>,
        copies: Copies,
    ) {
        let world = &self.world;
        let server = &world.servers[self.server];
        if server.state() == State::Down {
            let refused = Err(error(StoreErrorKind::Unreachable, "refused"));
            let time = self.estimate(self.clock.nanos());
            world.net.at(Instant::now() + world.way(), move || drop(reply.send((time, refused))));
            return;
        }
        let cut = world.cut(self.process, self.server).up;
        let storm = world.weather().storm;
        let fate = world.dice(|dice| dice.below(100) >= storm || dice.once_in(2)).then_some(Fate::Passes);
        let fate =
            fate.unwrap_or_else(|| Fate::ALL[world.dice(|dice| super::world::pick(dice, Fate::ALL.len()))]);
        let arrives = self.arrives(&self.last_up);
        let (generation, latest) = (server.generation(), latest.unwrap_or(ServerTime::from_micros(0)));
        let message = Message {
            client: Arc::clone(self),
            generation,
            latest,
            keys: keys.to_vec(),
            work: Arc::clone(work),
        };
        match fate {
            _ if cut => forget(self, reply),
            Fate::Lost => forget(self, reply),
            Fate::Broken => world.net.at(arrives, move || drop(reply)),
            Fate::Stuck => {
                world.net.at(arrives, move || drop(reply));
                let late = world.dice(|dice| dice.between(Duration::ZERO, Duration::from_millis(400)));
                world.net.at(arrives + late, move || message.arrive(None));
            }
            Fate::Twice if copies == Copies::Two => {
                let late = world.dice(|dice| dice.between(Duration::ZERO, Duration::from_millis(400)));
                let copy = message.copy();
                world.net.at(arrives, move || message.arrive(Some(reply)));
                world.net.at(arrives + late, move || copy.arrive(None));
            }
            Fate::Passes | Fate::Twice => world.net.at(arrives, move || message.arrive(Some(reply))),
        }
    }
}

/// Keeps the reply unanswered for so long that the caller runs into its time-out.
fn forget<T: Send + 'static>(client: &Client, reply: Reply<T>) {
    client.world.net.at(Instant::now() + Duration::from_secs(60), move || drop(reply));
}

/// How often a request may be executed although it was sent once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Copies {
    One,
    Two,
}

/// The fate of a request.
#[derive(Clone, Copy, Debug)]
enum Fate {
    Passes,
    /// Lost without notice.
    Lost,
    /// Lost with its connection.
    Broken,
    /// Its connection breaks, but it is executed later.
    Stuck,
    /// Executed, and executed again later.
    Twice,
}

impl Fate {
    const ALL: [Self; 4] = [Self::Lost, Self::Broken, Self::Stuck, Self::Twice];
}

/// A request under way.
struct Message<T> {
    client: Arc<Client>,
    generation: u64,
    latest: ServerTime,
    keys: Vec<LockKey>,
    work: Work<T>,
}

impl<T: Send + 'static> Message<T> {
    fn copy(&self) -> Self {
        let Self { client, generation, latest, keys, work } = self;
        let (client, keys, work) = (Arc::clone(client), keys.clone(), Arc::clone(work));
        Self { client, generation: *generation, latest: *latest, keys, work }
    }

    /// Executes the request when the server gets to it, unless its connection is broken by then.
    fn arrive(self, reply: Option<Reply<T>>) {
        let world = Arc::clone(&self.client.world);
        let server = self.client.server;
        world.clone().servers[server].receive(Box::new(move || {
            if self.generation != world.servers[server].generation() {
                return;
            }
            let handle = self.client.handle();
            let result = (self.work)(&handle, self.latest);
            world.executed(server, &self.keys);
            let (Some(reply), time) = (reply, handle.time()) else { return };
            let storm = world.weather().storm;
            if world.cut(self.client.process, server).down || world.dice(|dice| dice.below(200) < storm) {
                return forget(&self.client, reply);
            }
            let client = Arc::clone(&self.client);
            world.net.at(self.client.arrives_here(), move || {
                if client.world.cut(client.process, client.server).down {
                    forget(&client, reply);
                } else {
                    let _ = reply.send((time, result));
                }
            });
        }));
    }
}

pub(super) fn error(kind: StoreErrorKind, what: &str) -> StoreError {
    StoreError::new(kind, format!("the simulated server: {what}"))
}

fn keys_of(items: &[Item]) -> Vec<LockKey> {
    items.iter().map(|item| item.key.clone()).collect()
}

impl QuorumMember for SimStore {
    fn mark(&self, request: MarkRequest) -> BoxFuture<Result<Marked, StoreError>> {
        self.call(request.timeout, None, Vec::new(), move |handle, _| Ok(handle.mark(request.mark)))
    }
}

impl LockStore for SimStore {
    fn abilities(&self) -> &Abilities {
        &ABILITIES
    }

    fn acquire(&self, request: Arc<AcquireRequest>) -> BoxFuture<Result<Acquired, StoreError>> {
        let (steals, jumps) = (self.lies(Lie::GrantsTwice, 5), self.lies(Lie::JumpsQueues, 2));
        let starved = self.0.world.lies(Lie::StarvesOne) && self.0.process == 0;
        let (reuses, lasts) = (self.0.world.lies(Lie::ReusesTokens), self.0.world.lies(Lie::NeverExpires));
        let hot = self.0.world.lies(Lie::NoPauses);
        let deaf = self.0.world.lies(Lie::ForgetsWaiters);
        let taking = Some(Arc::clone(&request));
        // A queueing request is executed once: after its answer, no place in a queue may come back
        // that was given up. Nobody withdraws a copy of another request, so the copy ends with its
        // lease.
        let copies = if request.wait.is_some() { Copies::One } else { Copies::Two };
        self.call_in(copies, request.timeout, taking, keys_of(&request.items), move |handle, latest| {
            if steals {
                for item in &request.items {
                    handle.force_release(&item.key);
                }
            }
            let result = if jumps || lasts {
                let kind = |kind| if jumps && kind == Kind::Fair { Kind::Mutex } else { kind };
                let items = request.items.iter().map(|item| Item { kind: kind(item.kind), ..item.clone() });
                let lease = if lasts { request.lease * 1000 } else { request.lease };
                let mut other = AcquireRequest::new(items.collect::<Vec<_>>(), lease, request.timeout);
                other.wait = request.wait;
                handle.acquire(&Arc::new(other), latest)
            } else if starved {
                Ok(Acquired::Busy(Busy {
                    item: 0,
                    remaining: Some(request.lease),
                    moment: handle.time().into(),
                    listeners: 0,
                    ahead: 0,
                }))
            } else {
                handle.acquire(&request, latest)
            };
            Ok(match result? {
                Acquired::Granted(granted) if reuses => {
                    let tokens =
                        granted.tokens.iter().map(|range| TokenRange::ending_at(range.last / 1_000_000, 1));
                    Acquired::Granted(Granted { tokens: tokens.collect(), ..granted })
                }
                Acquired::Busy(busy) if hot => {
                    Acquired::Busy(Busy { remaining: Some(Duration::from_nanos(1)), ..busy })
                }
                Acquired::Busy(busy) if deaf => {
                    Acquired::Busy(Busy { remaining: Some(Duration::from_secs(3600)), ..busy })
                }
                acquired => acquired,
            })
        })
    }

    fn release(&self, request: Arc<ReleaseRequest>) -> BoxFuture<Result<Released, StoreError>> {
        let (loses, foreign) = (self.lies(Lie::RenewsAll, 1), self.lies(Lie::ReleasesForeign, 3));
        let takeover = request.then.as_ref().map(|takeover| Arc::clone(&takeover.request));
        let takes = takeover.is_some();
        self.call(request.timeout, takeover, keys_of(&request.items), move |handle, latest| {
            if loses {
                let held = vec![true; request.items.len()].into();
                return Ok(Released { held, rivals: Rivals::None, then: None });
            }
            let released = handle.release(&request, takes.then_some(latest));
            if foreign {
                for item in &request.items {
                    handle.force_release(&item.key);
                }
            }
            Ok(released)
        })
    }

    fn renew(&self, request: Arc<RenewRequest>) -> BoxFuture<Result<Vec<Renewed>, StoreError>> {
        let keys = request.items.iter().map(|kept| kept.item.key.clone()).collect();
        let lies = self.0.world.lies(Lie::OnlySaysRenewed);
        self.call(request.timeout, None, keys, move |handle, _| {
            if lies {
                return Ok(vec![Renewed::Held; request.items.len()]);
            }
            Ok(handle.renew(&request))
        })
    }

    fn downgrade(&self, request: Arc<RenewRequest>) -> BoxFuture<Result<Vec<Renewed>, StoreError>> {
        let keys = request.items.iter().map(|kept| kept.item.key.clone()).collect();
        self.call(request.timeout, None, keys, move |handle, _| Ok(handle.downgrade(&request)))
    }

    fn withdraw(&self, request: Arc<AcquireRequest>) -> BoxFuture<Result<Withdrawn, StoreError>> {
        // Executed once: nobody repeats a withdrawal after its answer while the owner goes on.
        let copies = Copies::One;
        self.call_in(copies, request.timeout, None, keys_of(&request.items), move |handle, _| {
            Ok(handle.withdraw(&request))
        })
    }

    fn watch(&self, request: Arc<AcquireRequest>) -> BoxFuture<Result<Watch, StoreError>> {
        let asked = Arc::clone(&request);
        let call = self.call(request.timeout, None, Vec::new(), move |handle, _| {
            // If the caller does not take the watch, its connection is broken.
            Ok(handle.watch(&asked))
        });
        let client = Arc::clone(&self.0);
        Box::pin(async move {
            let generation = client.world.servers[client.server].generation();
            let there = call.await?;
            let (notices, receiver) = mpsc::channel(QUEUE);
            let task = tokio::spawn(listen(client, request, there, generation, notices));
            Ok(Watch::new(receiver, true, Box::new(Registration(task.abort_handle()))))
        })
    }

    fn status(&self, key: LockKey) -> BoxFuture<Result<LockStatus, StoreError>> {
        self.call(ADMIN, None, Vec::new(), move |handle, _| Ok(handle.status(&key)))
    }

    fn force_release(&self, key: LockKey) -> BoxFuture<Result<bool, StoreError>> {
        self.call(ADMIN, None, vec![key.clone()], move |handle, _| Ok(handle.force_release(&key)))
    }

    fn member(&self) -> Option<&dyn QuorumMember> {
        Some(self)
    }

    fn check(&self) -> BoxFuture<Result<(), StoreError>> {
        self.call(ADMIN, None, Vec::new(), |_, _| Ok(()))
    }
}

impl fmt::Debug for SimStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Client { process, server, .. } = &*self.0;
        f.debug_struct("SimStore").field("process", process).field("server", server).finish_non_exhaustive()
    }
}
