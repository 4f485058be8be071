//! [`Discovery`]: finds a primary through its sentinels, and ends connections to a former one.
//!
//! For every connection all sentinels are asked at once. The answer with the highest epoch counts.
//! The epoch is the number of a failover, by which sentinels themselves settle which of them is
//! right. For some seconds after a failover, some sentinels still name the former primary. Those
//! that are cut off do so as long as that lasts, and their primary may be reachable and believe in
//! its role. So a known answer is not replaced by an older one unless most sentinels give the older
//! one.
//!
//! The named server must confirm that it is the primary. Meanwhile a [`watcher`] listens to the
//! sentinels.

use std::fmt;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use lock_core::internal::clock::{Clock, Tick};
use lock_core::internal::sync::lock;
use lock_core::store::{StoreError, StoreErrorKind};
use redis::aio::{AsyncPushSender, MultiplexedConnection};
use redis::{ConnectionInfo, PushInfo, PushKind, Value};
use tokio::runtime::Handle;
use tokio::sync::Notify;
use tokio::task::{AbortHandle, JoinSet};

use super::classify::Address;
use super::dialer::{configuration, prepared};
use super::login::Login;
use super::options::RedisOptions;
use super::reply::entry;
use super::url::Sentinels;
use crate::trace::TARGET;

mod ask;
mod watcher;

use ask::{Answer, Place, View, ask};

/// Time that the other sentinels have after the first one has answered.
const GRACE: Duration = Duration::from_millis(100);
/// Time after a failover in which some sentinels may not know of it: they inform each other every
/// two seconds.
const LAG: Duration = Duration::from_secs(10);
/// Pause before a server that is not a primary yet is asked again.
const PAUSE: Duration = Duration::from_millis(50);
/// Maximum time for asking it again, so that callers who wait for the connection learn why there is
/// none.
const PATIENCE: Duration = Duration::from_secs(1);
/// Maximum number of sentinels that are asked besides those in the URL.
const LEARNED: usize = 16;

pub(super) struct Discovery {
    sentinels: Sentinels,
    address: Address,
    login: Login,
    connect_timeout: Duration,
    clock: Clock,
    runtime: Handle,
    state: Mutex<State>,
    /// Notified when another server is the primary.
    changed: Notify,
    weak: Weak<Self>,
}

#[derive(Default)]
struct State {
    /// Sentinels that other sentinels named.
    learned: Vec<Place>,
    /// The newest known view, and the time since which it is known.
    newest: Option<(View, Tick)>,
    /// Connections in use.
    links: Vec<Link>,
    watcher: Option<AbortHandle>,
}

/// A connection to a primary.
struct Link {
    view: View,
    pushes: Weak<dyn AsyncPushSender>,
}

/// Origin of a view.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Source {
    OneSentinel,
    /// All sentinels that could be asked.
    Sentinels,
}

impl fmt::Debug for Discovery {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Discovery").field("address", &self.address).finish_non_exhaustive()
    }
}

impl Drop for Discovery {
    fn drop(&mut self) {
        if let Some(watcher) = lock(&self.state).watcher.take() {
            watcher.abort();
        }
    }
}

impl Discovery {
    pub(super) fn new(sentinels: &Sentinels, options: &RedisOptions) -> Arc<Self> {
        let RedisOptions { login, connect_timeout, clock, runtime, .. } = options.clone();
        let sentinels = Sentinels {
            peers: sentinels.peers.iter().map(prepared).collect(),
            master: sentinels.master.clone(),
            template: prepared(&sentinels.template),
        };
        Arc::new_cyclic(|weak| Self {
            address: Address::of_sentinels(&sentinels).that_changes(login.changes()),
            sentinels,
            login,
            connect_timeout,
            clock,
            runtime,
            state: Mutex::default(),
            changed: Notify::new(),
            weak: weak.clone(),
        })
    }

    pub(super) fn address(&self) -> &Address {
        &self.address
    }

    /// Returns how to connect to the primary, except for the address.
    pub(super) fn template(&self) -> &ConnectionInfo {
        &self.sentinels.template
    }

    /// Returns how many replicas the sentinels know, down or not.
    pub(super) fn replicas(&self) -> Option<u32> {
        lock(&self.state).newest.as_ref().and_then(|(view, _)| view.replicas)
    }

    /// Connects to the primary. `pushes` also receives a `Disconnection` when another server
    /// becomes the primary.
    pub(super) async fn dial(
        &self,
        pushes: impl AsyncPushSender,
    ) -> Result<MultiplexedConnection, StoreError> {
        let pushes = Arc::new(pushes);
        let now = self.clock.now();
        let deadline = now + self.connect_timeout;
        let patient_until = now + PATIENCE.min(self.connect_timeout / 2);
        loop {
            let changed = self.changed.notified();
            let view = self.resolve(deadline).await?;
            let connected = tokio::select! {
                connected = self.connect(&view.place, &pushes, deadline) => connected?,
                // A dead server need not be waited for.
                () = changed => continue,
            };
            let why = match connected {
                Ok(connection) if self.register(view, &pushes) => {
                    self.start_watcher();
                    return Ok(connection);
                }
                Ok(_) => continue,
                Err(why) => why,
            };
            if self.clock.now() >= patient_until {
                return Err(self.address.error(StoreErrorKind::Unreachable, why));
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// Connects to a server. The inner error names its role if it is not a primary.
    async fn connect<P: AsyncPushSender>(
        &self,
        place: &Place,
        pushes: &Arc<P>,
        deadline: Tick,
    ) -> Result<Result<MultiplexedConnection, String>, StoreError> {
        let info = place.reached_like(&self.sentinels.template);
        let address = self.login.address(&info);
        let named = |error: StoreError| {
            let what = format!(
                "{error} (the sentinels name this server as the primary {:?})",
                self.sentinels.master
            );
            StoreError::new(error.kind(), what)
        };
        let connect = async {
            let config = configuration(Arc::clone(pushes));
            let (mut connection, address) = self.login.connect(&info, false, &config).await?;
            // HELLO tells the same role as ROLE, and needs no right.
            match connection.send_packed_command(&redis::cmd("HELLO")).await {
                Ok(Value::ServerError(error)) => Err(address.refused(&error)),
                Ok(hello) => Ok((connection, entry(&hello, "role"))),
                Err(error) => Err(address.connect_error(&error)),
            }
        };
        match tokio::time::timeout(deadline.since(self.clock.now()), connect).await {
            Ok(Ok((_, Some(role)))) if role != "master" => Ok(Err(format!(
                "the sentinels name {place:?}, whose role is {role}: a failover may be under way"
            ))),
            Ok(Ok((connection, _))) => Ok(Ok(connection)),
            Ok(Err(error)) => Err(named(error)),
            Err(_) => {
                let what = format!("no connection within {:?}", self.connect_timeout);
                Err(named(address.error(StoreErrorKind::Unreachable, what)))
            }
        }
    }

    /// Asks the sentinels where the primary is.
    async fn resolve(&self, deadline: Tick) -> Result<View, StoreError> {
        let peers = self.peers();
        // A dead primary takes its share of the time.
        let timeout = self.connect_timeout.mul_f64(0.4);
        let mut until = deadline.min(self.clock.now() + self.connect_timeout / 2);
        let most = peers.len() / 2 + 1;
        let mut asking = JoinSet::new();
        for info in peers {
            let (login, master) = (self.login.clone(), self.sentinels.master.clone());
            asking.spawn_on(async move { ask(&login, &info, &master, timeout).await }, &self.runtime);
        }
        let (mut views, mut unknown, mut failed) = (Vec::new(), None, Vec::new());
        while views.len() < most {
            let left = until.since(self.clock.now());
            match tokio::time::timeout(left, asking.join_next()).await {
                Ok(Some(Ok(Answer::View(view)))) => {
                    views.push(view);
                    until = until.min(self.clock.now() + GRACE);
                }
                Ok(Some(Ok(Answer::Unknown(names)))) => unknown = Some(names),
                Ok(Some(Ok(Answer::Failed(error)))) => failed.push(error),
                Ok(Some(Err(_))) => {}
                Ok(None) | Err(_) => break,
            }
        }

        let mut state = lock(&self.state);
        state.learn(&self.sentinels.peers, &views);
        let used = state.newest.as_ref().map(|(view, _)| &view.place);
        let Some(view) = newest(&views, used) else {
            // The answer of a sentinel without knowledge proves nothing while another sentinel
            // cannot answer.
            let all_said = failed.is_empty() && asking.is_empty();
            return Err(self.not_found(all_said && state.newest.is_none(), unknown, &failed));
        };
        match &state.newest {
            Some(known) if self.is_superseded(view, known) => Ok(known.0.clone()),
            Some((known, _)) if known.epoch > view.epoch && views.len() < most => {
                let what = "most of the sentinels do not answer, and the answers of the others are outdated";
                Err(self.address.error(StoreErrorKind::Unreachable, what))
            }
            _ => Ok(view.clone()),
        }
    }

    /// Whether `view` comes from a sentinel that does not know yet what is known here.
    fn is_superseded(&self, view: &View, (known, since): &(View, Tick)) -> bool {
        known.epoch > view.epoch && self.clock.now().since(*since) < LAG
    }

    fn not_found(&self, certain: bool, unknown: Option<Vec<String>>, failed: &[StoreError]) -> StoreError {
        let master = &self.sentinels.master;
        if let Some(names) = unknown {
            let known = if names.is_empty() { "none".to_owned() } else { names.join(", ") };
            let what = format!("the sentinels know no primary {master:?}; they know {known}");
            // A name that was right once is not a mistake in the URL.
            let kind = if certain { StoreErrorKind::Unsupported } else { StoreErrorKind::Unreachable };
            return self.address.error(kind, what);
        }
        let kind = match failed.iter().find(|error| !error.is_transient()) {
            Some(error) => error.kind(),
            None => StoreErrorKind::Unreachable,
        };
        let each: Vec<String> = failed.iter().map(ToString::to_string).collect();
        let each = if each.is_empty() { "none answered in time".to_owned() } else { each.join("; ") };
        self.address.error(kind, format!("no sentinel can be asked: {each}"))
    }

    /// Returns all sentinels.
    fn peers(&self) -> Vec<ConnectionInfo> {
        let configured = &self.sentinels.peers;
        let learned = lock(&self.state).learned.clone();
        let learned = configured
            .first()
            .into_iter()
            .flat_map(|template| learned.iter().map(move |place| place.reached_like(template)));
        configured.iter().cloned().chain(learned).collect()
    }

    /// Registers a connection. Returns `false` if another server has become the primary meanwhile.
    fn register<P: AsyncPushSender>(&self, view: View, pushes: &Arc<P>) -> bool {
        let mut state = lock(&self.state);
        state.links.retain(|link| link.pushes.strong_count() > 0);
        if state.newest.as_ref().is_some_and(|known| self.is_superseded(&view, known)) {
            return false;
        }
        state.see(&view, self.clock.now());
        let pushes = Arc::downgrade(pushes);
        state.links.push(Link { view, pushes });
        true
    }

    /// Notes where the sentinels see the primary, and ends connections to other servers.
    fn heard(&self, view: &View, source: Source) {
        let mut state = lock(&self.state);
        if state.newest.as_ref().is_some_and(|known| self.is_superseded(view, known)) {
            return;
        }
        let outdated = |known: &View| {
            known.place != view.place && (view.epoch > known.epoch || source == Source::Sentinels)
        };
        let gone: Vec<Link> = state.links.extract_if(.., |link| outdated(&link.view)).collect();
        let moved = state.newest.as_ref().is_none_or(|(known, _)| outdated(known));
        if moved {
            tracing::info!(target: TARGET, store = ?self.address, primary = ?view.place, "another server is the primary");
        }
        let confirmed = |(known, _): &(View, Tick)| known.place == view.place && known.epoch <= view.epoch;
        if moved || state.newest.as_ref().is_some_and(confirmed) {
            state.see(view, self.clock.now());
        }
        drop(state);
        for link in gone {
            if let Some(pushes) = link.pushes.upgrade() {
                let _ = pushes.send(PushInfo { kind: PushKind::Disconnection, data: Vec::new() });
            }
        }
        if moved {
            self.changed.notify_waiters();
        }
    }

    fn start_watcher(&self) {
        let mut state = lock(&self.state);
        if state.watcher.as_ref().is_none_or(AbortHandle::is_finished) {
            state.watcher = Some(self.runtime.spawn(watcher::watch(self.weak.clone())).abort_handle());
        }
    }
}

impl State {
    /// Makes `view` the newest.
    fn see(&mut self, view: &View, now: Tick) {
        let since = match &self.newest {
            Some((known, since)) if known.epoch == view.epoch && known.place == view.place => *since,
            _ => now,
        };
        self.newest = Some((view.clone(), since));
    }

    fn learn(&mut self, configured: &[ConnectionInfo], views: &[View]) {
        if views.is_empty() {
            return;
        }
        self.learned.clear();
        for place in views.iter().flat_map(|view| &view.sentinels) {
            let known = |info| Place::of(info).is_some_and(|known| known == *place);
            if self.learned.len() < LEARNED && !self.learned.contains(place) && !configured.iter().any(known)
            {
                self.learned.push(place.clone());
            }
        }
    }
}

/// Returns the newest view: the one with the highest epoch. Among equals it prefers the place in
/// use, then the one with most votes.
fn newest<'a>(views: &'a [View], used: Option<&Place>) -> Option<&'a View> {
    let votes = |place: &Place| views.iter().filter(|view| view.place == *place).count();
    views.iter().max_by_key(|view| (view.epoch, used == Some(&view.place), votes(&view.place)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn view(port: u16, epoch: u64) -> View {
        let place = Place { host: "10.0.0.1".to_owned(), port };
        View { place, epoch, replicas: None, sentinels: Vec::new() }
    }

    #[test]
    fn the_newest_configuration_counts_however_many_name_an_older_one() {
        let views = [view(1, 3), view(2, 4), view(1, 3)];
        assert_eq!(newest(&views, Some(&views[0].place)), Some(&views[1]));
        assert_eq!(newest(&[], None), None);
    }

    #[test]
    fn without_epochs_what_is_in_use_stays_and_most_decide() {
        let views = [view(1, 0), view(2, 0), view(2, 0)];
        assert_eq!(newest(&views, None).map(|view| view.place.port), Some(2));
        assert_eq!(newest(&views, Some(&views[0].place)).map(|view| view.place.port), Some(1));
    }
}
