//! [`Discovery`]: finds a primary through its sentinels, and ends the connections to a former one.
//!
//! Every connection begins with asking the sentinels, all at once. Of what they say the highest
//! epoch counts: the number of a failover, by which sentinels too settle who of them is right.
//! After a failover some still name the former primary for some seconds, and those that are cut off
//! from the others for as long as that lasts; it may well be reachable and think that it is the
//! primary. So what was known is not given up for something older unless most of them say so.
//!
//! The server that they name must say itself that it is the primary. Meanwhile a [`watcher`]
//! listens to them.

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

/// After the first sentinel has answered, the others have so long.
const GRACE: Duration = Duration::from_millis(100);
/// So long after a failover there may be sentinels that have not heard of it: they tell each other
/// every two seconds.
const LAG: Duration = Duration::from_secs(10);
/// Pause before a server is asked again that is not a primary yet.
const PAUSE: Duration = Duration::from_millis(50);
/// So long it is asked, if there is so much time: who waits for the connection shall hear why there
/// is none.
const PATIENCE: Duration = Duration::from_secs(1);
/// Sentinels that are asked besides those in the URL, at most.
const LEARNED: usize = 16;

pub(super) struct Discovery {
    sentinels: Sentinels,
    address: Address,
    login: Login,
    connect_timeout: Duration,
    clock: Clock,
    runtime: Handle,
    state: Mutex<State>,
    /// Another server is the primary.
    changed: Notify,
    weak: Weak<Self>,
}

#[derive(Default)]
struct State {
    /// Sentinels that the others named.
    learned: Vec<Place>,
    /// The newest that is known, and since when.
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

/// Who says where the primary is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Source {
    OneSentinel,
    /// All of them, as far as they can be asked.
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

    /// How to connect to the primary, but for its address.
    pub(super) fn template(&self) -> &ConnectionInfo {
        &self.sentinels.template
    }

    /// How many replicas the sentinels know, those that are down included.
    pub(super) fn replicas(&self) -> Option<u32> {
        lock(&self.state).newest.as_ref().and_then(|(view, _)| view.replicas)
    }

    /// A connection to the primary. Whoever gets its pushes is told that it is disconnected when
    /// another server is the primary.
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
                // Not to be waited for if it is dead.
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

    /// Connects; the inner error says what the server is instead of a primary.
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
            // Says what ROLE says, and nobody is forbidden to ask.
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
            // A sentinel that knows nothing yet is no proof while another one can't say what it
            // knows.
            let all_said = failed.is_empty() && asking.is_empty();
            return Err(self.not_found(all_said && state.newest.is_none(), unknown, &failed));
        };
        match &state.newest {
            Some(known) if self.is_superseded(view, known) => Ok(known.0.clone()),
            Some((known, _)) if known.epoch > view.epoch && views.len() < most => {
                let what = "most of the sentinels do not answer, and what the others say is outdated";
                Err(self.address.error(StoreErrorKind::Unreachable, what))
            }
            _ => Ok(view.clone()),
        }
    }

    /// Whether `view` is the one of a sentinel that has not heard yet what is known here.
    fn is_superseded(&self, view: &View, (known, since): &(View, Tick)) -> bool {
        known.epoch > view.epoch && self.clock.now().since(*since) < LAG
    }

    fn not_found(&self, certain: bool, unknown: Option<Vec<String>>, failed: &[StoreError]) -> StoreError {
        let master = &self.sentinels.master;
        if let Some(names) = unknown {
            let known = if names.is_empty() { "no primary at all".to_owned() } else { names.join(", ") };
            let what = format!("the sentinels know no primary {master:?}; they know {known}");
            // What was right once is not a mistake in the URL.
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

    /// All sentinels.
    fn peers(&self) -> Vec<ConnectionInfo> {
        let configured = &self.sentinels.peers;
        let learned = lock(&self.state).learned.clone();
        let learned = configured
            .first()
            .into_iter()
            .flat_map(|template| learned.iter().map(move |place| place.reached_like(template)));
        configured.iter().cloned().chain(learned).collect()
    }

    /// Counts a connection in, unless another server has become the primary meanwhile.
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

    /// The sentinels say that the primary is there: connections to another server are over.
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
    /// `view` counts from now on.
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

/// The newest of these: the highest epoch; among equals the one in use, or what most say.
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
