//! Loads the slot map from whichever server answers first.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use lock_core::internal::clock::Tick;
use lock_core::internal::sync::lock;
use lock_core::store::kit::ServerClock;
use lock_core::store::{StoreError, StoreErrorKind};
use rand::seq::SliceRandom;
use redis::Value;
use tokio::sync::watch as cell;
use tokio::task::JoinSet;

use super::super::connection::{At, Connector};
use super::super::dialer::Dialer;
use super::super::fault::Fault;
use super::super::reply;
use super::super::script::Dialect;

use super::Cluster;
use super::slots::{Place, SlotMap};

/// Minimum time between the beginnings of two loads.
const PAUSE: Duration = Duration::from_millis(100);
/// Time after which the next server is asked too.
const SLOW: Duration = Duration::from_millis(150);

type Outcome = Option<Result<(), StoreError>>;

/// The load under way, or the last one.
#[derive(Default)]
pub(super) struct Loading {
    outcome: Option<cell::Receiver<Outcome>>,
    begun: Option<Tick>,
}

/// One server's view of the cluster.
struct Seen {
    map: SlotMap,
    /// `None` if the server was not asked.
    dialect: Option<Dialect>,
    /// Whether the server does not report the cluster as failed.
    healthy: bool,
}

impl Cluster {
    /// Returns the slot map, loaded now if there is none.
    pub(super) async fn map(&self, deadline: Tick) -> Result<Arc<SlotMap>, StoreError> {
        if let Some(map) = &*self.map.borrow() {
            return Ok(Arc::clone(map));
        }
        let mut outcome = self.refresh();
        let left = deadline.since(self.now());
        let loaded = tokio::time::timeout(left, outcome.wait_for(Option::is_some)).await;
        let unreachable = |what| self.error(StoreErrorKind::Unreachable, what);
        match loaded {
            Ok(Ok(loaded)) => {
                if let Some(Err(error)) = &*loaded {
                    return Err(error.clone());
                }
            }
            Ok(Err(_)) => return Err(unreachable("the task that looks for the servers has ended")),
            Err(_) => return Err(unreachable("no server of the cluster has answered in time")),
        }
        self.map.borrow().clone().ok_or_else(|| unreachable("the servers of the cluster are not known"))
    }

    /// Loads the slot map in the background, unless a load is under way.
    pub(super) fn refresh(&self) -> cell::Receiver<Outcome> {
        let mut loading = lock(&self.loading);
        if let Some(outcome) = &loading.outcome
            && outcome.has_changed().is_ok()
            && outcome.borrow().is_none()
        {
            return outcome.clone();
        }
        let (sender, outcome) = cell::channel(None);
        let now = self.now();
        let since = loading.begun.map_or(PAUSE, |begun| now.since(begun));
        let pause = PAUSE.saturating_sub(since);
        loading.outcome = Some(outcome.clone());
        loading.begun = Some(now + pause);
        let cluster = self.weak.clone();
        drop(self.options.runtime.spawn(async move {
            if !pause.is_zero() {
                tokio::time::sleep(pause).await;
            }
            if let Some(cluster) = cluster.upgrade() {
                let loaded = cluster.load().await;
                let _ = sender.send(Some(loaded));
            }
        }));
        outcome
    }

    async fn load(&self) -> Result<(), StoreError> {
        let mut candidates = self.candidates()?.into_iter();
        let mut asked = JoinSet::new();
        let (mut doubtful, mut failure) = (None, None);
        let (timeout, ask_dialect) = (self.options.connect_timeout, self.dialect.get().is_none());
        loop {
            let more = candidates.next().map(|(place, connector)| {
                asked.spawn(async move { ask(&place, &connector, timeout, ask_dialect).await });
            });
            let answer = match more {
                Some(()) => tokio::time::timeout(SLOW, asked.join_next()).await,
                None => Ok(asked.join_next().await),
            };
            match answer {
                // The next server is asked too.
                Err(_) => {}
                Ok(None) => break,
                Ok(Some(Ok(Ok(seen)))) if seen.healthy => {
                    self.install(seen);
                    return Ok(());
                }
                Ok(Some(Ok(Ok(seen)))) => doubtful = Some(seen),
                Ok(Some(Ok(Err(error)))) => {
                    // A server's error says more than that another server is unreachable.
                    if failure.is_none() || error.kind() != StoreErrorKind::Unreachable {
                        failure = Some(error);
                    }
                }
                Ok(Some(Err(_))) => {}
            }
        }
        match (doubtful, failure) {
            // The servers report that the cluster is down, but their map is better than none.
            (Some(seen), _) => {
                self.install(seen);
                Ok(())
            }
            (None, Some(error)) => Err(error),
            (None, None) => Err(self.error(StoreErrorKind::Unreachable, "no server of the cluster answers")),
        }
    }

    /// Returns the servers to ask: the known ones and the seeds.
    fn candidates(&self) -> Result<Vec<(Place, Arc<Connector>)>, StoreError> {
        let mut known: Vec<_> = lock(&self.nodes)
            .iter()
            .map(|(place, node)| (place.clone(), Arc::clone(&node.connector)))
            .collect();
        let mut seeds = Vec::new();
        for (place, info) in &self.seeds {
            if !known.iter().any(|(other, _)| other == place) {
                let dialer = Dialer::new(info, &self.options)?;
                let (runtime, clock) = (self.options.runtime.clone(), Arc::new(ServerClock::default()));
                seeds.push((place.clone(), Connector::new(dialer, runtime, clock)));
            }
        }
        known.shuffle(&mut rand::rng());
        known.append(&mut seeds);
        Ok(known)
    }

    fn install(&self, seen: Seen) {
        if let Some(dialect) = seen.dialect {
            let _ = self.dialect.set(dialect);
        }
        self.healthy.store(seen.healthy, Ordering::Relaxed);
        lock(&self.nodes).retain(|place, _| seen.map.primaries().contains(place));
        let map = Arc::new(seen.map);
        let before = self.map.send_replace(Some(Arc::clone(&map)));
        self.forget_seeds(|slot| before.as_ref().and_then(|before| before.owner(slot)) != map.owner(slot));
    }
}

/// Asks one server.
async fn ask(
    place: &Place,
    connector: &Connector,
    timeout: Duration,
    ask_dialect: bool,
) -> Result<Seen, StoreError> {
    let ready = connector.ready(At::once(timeout)).await?;
    let call = async |words: &[&str]| {
        let mut command = redis::Cmd::new();
        for word in words {
            command.arg(*word);
        }
        connector.call(&ready, &command).await.map_err(|error| Fault::from(error).error)
    };
    let address = &connector.dialer().address;
    let slots = call(&["CLUSTER", "SLOTS"]).await.map_err(|error| {
        if error.to_string().contains("cluster support disabled") {
            let what = "the server is not in cluster mode; write redis://host:port for a single one";
            return address.error(StoreErrorKind::Unsupported, what);
        }
        error
    })?;
    let map = SlotMap::read(&slots, place).ok_or_else(|| {
        let what = match reply::array(&slots) {
            Some([]) => "CLUSTERDOWN no slot has a server yet".to_owned(),
            _ => format!("unexpected answer to CLUSTER SLOTS: {slots:?}"),
        };
        address.error(StoreErrorKind::NotReady, what)
    })?;
    // If the user may not ask this, the servers themselves report it later.
    let healthy = match call(&["CLUSTER", "INFO"]).await {
        Ok(Value::VerbatimString { text, .. }) => !text.contains("cluster_state:fail"),
        Ok(info) => reply::text(&info).is_none_or(|text| !text.contains("cluster_state:fail")),
        Err(error) if error.is_transient() => return Err(error),
        Err(_) => true,
    };
    let dialect = if ask_dialect {
        // Redisson asks the same question once, so both listen in the same way.
        match call(&["PUBSUB", "SHARDNUMSUB", "0"]).await {
            Ok(_) => Some(Dialect::Sharded),
            Err(error) if error.is_transient() => return Err(error),
            Err(_) => Some(Dialect::Classic),
        }
    } else {
        None
    };
    Ok(Seen { map, dialect, healthy })
}
