//! [`Cluster`]: locks on a Redis Cluster, each at the server that has its slot.
//!
//! All keys of one lock are in one slot, so each step on it is a script at one server, as with a
//! single server. The cluster's own parts are:
//!
//! - [`slots`]: which server has which slot. [`load`]: loads that map, and again when a server is
//!   away or a slot has moved.
//! - [`route`]: redirects. MOVED and ASK mean that a step was not executed. So it is sent again
//!   unchanged, except for a `latest` by the next server's clock. [`moving`]: locks whose keys are
//!   at two servers.
//! - [`several`]: requests for keys in several slots, one step for each slot. [`steps`]: all other
//!   requests.
//! - [`counting`]: semaphores and latches. [`watch`]: subscriptions, which follow their slots.
//!   [`admin`]: operators' steps.
//!
//! Scripts are never loaded at all servers: each server gets the text when it does not know the
//! hash.

use std::collections::HashMap;
use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::time::Duration;

use lock_core::LockKey;
use lock_core::internal::clock::Tick;
use lock_core::internal::sync::lock;
use lock_core::store::{StoreError, StoreErrorKind};
use redis::{ConnectionAddr, ConnectionInfo};
use tokio::sync::watch as cell;

use super::classify::Address;
use super::connection::At;
use super::dialer::{Dialer, elsewhere};
use super::fault::Fault;
use super::hash_slot::slot;
use super::names::Names;
use super::node::Node;
use super::options::RedisOptions;
use super::script::Dialect;
use super::subscriber::Channels;
use super::url::Seeds;
use crate::trace::TARGET;

mod admin;
mod counting;
mod load;
mod moving;
mod refusals;
mod route;
mod several;
pub(super) mod slots;
mod steps;
mod watch;

use load::Loading;
use refusals::Refusals;
use route::{Moving, Route, Turn};

use slots::{Place, SlotMap};
use watch::Watches;

/// The servers of a cluster.
pub(super) struct Cluster {
    pub(super) options: RedisOptions,
    /// For errors that concern no single server.
    pub(super) address: Address,
    seeds: Vec<(Place, ConnectionInfo)>,
    /// How waiters are notified; determined once.
    dialect: OnceLock<Dialect>,
    nodes: Mutex<HashMap<Place, Arc<Node>>>,
    loading: Mutex<Loading>,
    /// Whether the cluster was up according to the servers when the map was loaded.
    healthy: AtomicBool,
    map: cell::Sender<Option<Arc<SlotMap>>>,
    moving: Mutex<Moving>,
    watches: Mutex<Watches>,
    refusals: Refusals,
    weak: Weak<Self>,
}

impl fmt::Debug for Cluster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cluster").field("address", &self.address).finish_non_exhaustive()
    }
}

impl Cluster {
    pub(super) fn new(seeds: &Seeds, options: RedisOptions) -> Result<Arc<Self>, StoreError> {
        let places: Option<Vec<_>> =
            seeds.seeds.iter().map(|info| Some((place_of(info.addr())?, info.clone()))).collect();
        let refuse = |what| StoreError::new(StoreErrorKind::Unsupported, what);
        let seeds = places.ok_or_else(|| refuse("a cluster needs TCP addresses"))?;
        let (_, first) = seeds.first().ok_or_else(|| refuse("the address of a cluster names no server"))?;
        let address = options.login.address(first);
        Ok(Arc::new_cyclic(|weak| Self {
            options,
            address,
            seeds,
            dialect: OnceLock::new(),
            nodes: Mutex::default(),
            loading: Mutex::default(),
            healthy: AtomicBool::new(true),
            map: cell::Sender::new(None),
            moving: Mutex::default(),
            watches: Mutex::default(),
            refusals: Refusals::default(),
            weak: weak.clone(),
        }))
    }

    pub(super) fn now(&self) -> Tick {
        self.options.clock.now()
    }

    fn error(&self, kind: StoreErrorKind, what: &str) -> StoreError {
        self.address.error(kind, what)
    }

    /// Returns the server at `place`, with the credentials and the TLS settings of the seeds.
    fn node(&self, place: &Place) -> Result<Arc<Node>, StoreError> {
        if let Some(node) = lock(&self.nodes).get(place) {
            return Ok(Arc::clone(node));
        }
        let seed = self.seeds.iter().find(|(seed, _)| seed.host == place.host).or_else(|| self.seeds.first());
        let info = seed.map(|(_, info)| elsewhere(info, &place.host, place.port));
        let info = info.ok_or_else(|| self.error(StoreErrorKind::Unsupported, "no seed"))?;
        let dialect = self.dialect.get().copied().unwrap_or_default();
        let told = Told { cluster: self.weak.clone(), place: place.clone() };
        let node =
            Node::of(Dialer::new(&info, &self.options)?, self.options.clone(), dialect, Arc::new(told));
        Ok(Arc::clone(lock(&self.nodes).entry(place.clone()).or_insert(node)))
    }

    /// Returns the server that has `slot` according to the map.
    async fn owner(&self, slot: u16, deadline: Tick) -> Result<Place, StoreError> {
        let map = self.map(deadline).await?;
        if let Some(place) = map.owner(slot) {
            return Ok(place.clone());
        }
        self.refresh();
        let what = format!("CLUSTERDOWN no server of the cluster has the slot {slot}");
        Err(self.error(StoreErrorKind::NotReady, &what))
    }

    /// Returns the server that has a lock, as a number; 0 if it is not known.
    pub(super) fn place_of_key(&self, key: &LockKey) -> u64 {
        let (Ok(names), Some(map)) = (Names::new(&self.options.prefix, key), &*self.map.borrow()) else {
            return 0;
        };
        let mut hasher = DefaultHasher::new();
        map.owner(slot(&names.lock().to_string())).hash(&mut hasher);
        hasher.finish()
    }

    /// Runs a step at the server that has `slot`, and follows redirects, which mean that nothing
    /// was executed.
    async fn at_slot<T, F>(
        &self,
        slot: u16,
        deadline: Tick,
        step: impl Fn(Arc<Node>, At) -> F,
    ) -> Result<T, Fault>
    where
        F: Future<Output = Result<T, Fault>>,
    {
        let mut route = Route::default();
        loop {
            let place = match route.to.take() {
                Some(place) => place,
                None => self.owner(slot, deadline).await?,
            };
            let node = self.node(&place)?;
            let at = At { timeout: deadline.since(self.now()), asking: route.asking };
            let fault = match step(node, at).await {
                Ok(done) => return Ok(done),
                Err(fault) => fault,
            };
            match route.turn(fault.redirect.as_deref(), &place) {
                Turn::Again(Some((slot, to))) => self.moved(slot, &to),
                Turn::Again(None) => self.in_between(slot),
                Turn::Split => return Err(fault),
                Turn::Fail => {
                    self.doubt(&fault.error);
                    return Err(fault);
                }
                Turn::Lost => {
                    self.refresh();
                    let what = format!("the servers do not agree which of them has the slot {slot}");
                    return Err(self.error(StoreErrorKind::NotReady, &what).into());
                }
            }
        }
    }

    /// Notes that a server says that the slot is at `to`.
    fn moved(&self, slot: u16, to: &Place) {
        lock(&self.moving).settled(slot);
        let patched = self.map.send_if_modified(|map| {
            let patched = map.as_ref().and_then(|map| map.moved(slot, to));
            let Some(patched) = patched else { return false };
            *map = Some(Arc::new(patched));
            true
        });
        if patched {
            self.forget_seeds(|moved| moved == slot);
            tracing::debug!(target: TARGET, store = ?self.address, slot, %to, "a slot has moved");
            // A slot seldom moves alone.
            self.refresh();
        }
    }

    /// Makes all connections ask for the counters of these slots anew: another server may have had
    /// them.
    fn forget_seeds(&self, of: impl Fn(u16) -> bool) {
        let nodes: Vec<_> = lock(&self.nodes).values().cloned().collect();
        for session in nodes.iter().filter_map(|node| node.connector.session()) {
            session.forget_seeds(&of);
        }
    }

    /// Notes that keys of the slot are, or will be, at another server than its owner.
    fn in_between(&self, slot: u16) {
        if lock(&self.moving).seen(slot, self.now()) {
            // Makes the watchers of moving slots look periodically.
            self.map.send_modify(|_| {});
        }
    }

    /// Whether a separate step for each key may succeed: the keys are at two servers, or the user
    /// has no right to one of them. A server may report the missing right before it reports that
    /// keys are elsewhere.
    fn goes_apart(&self, slot: u16, fault: &Fault) -> bool {
        if fault.is_split() {
            self.in_between(slot);
        }
        fault.is_split() || fault.several.is_some()
    }

    /// Reloads the map after an error that suggests that servers have changed.
    fn doubt(&self, error: &StoreError) {
        let away = [
            StoreErrorKind::Unreachable,
            StoreErrorKind::Unanswered,
            StoreErrorKind::NotReady,
            StoreErrorKind::ReadOnly,
        ];
        if away.contains(&error.kind()) {
            self.refresh();
        }
    }

    /// Makes the servers speak this dialect, whatever they say.
    #[cfg(test)]
    pub(super) fn pretend(&self, dialect: Dialect) {
        self.dialect.set(dialect).unwrap();
    }

    #[cfg(test)]
    pub(super) fn nodes(&self) -> Vec<Arc<Node>> {
        lock(&self.nodes).values().cloned().collect()
    }

    fn deadline(&self, timeout: Duration) -> Tick {
        self.now() + timeout
    }
}

/// Receives what the subscriber of a server learns about slots.
struct Told {
    cluster: Weak<Cluster>,
    place: Place,
}

impl Channels for Told {
    fn moved(&self, slot: u16, to: &str) {
        if let (Some(cluster), Some(to)) = (self.cluster.upgrade(), Place::named(to, &self.place)) {
            cluster.moved(slot, &to);
        }
    }
}

fn place_of(address: &ConnectionAddr) -> Option<Place> {
    match address {
        ConnectionAddr::Tcp(host, port) | ConnectionAddr::TcpTls { host, port, .. } => {
            Some(Place::new(host, *port))
        }
        _ => None,
    }
}
