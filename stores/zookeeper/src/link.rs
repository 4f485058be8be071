//! [`Link`]: the session of a manager, and its heartbeats.

use std::fmt;
use std::sync::{Arc, Weak};
use std::time::Duration;

use futures_util::future::try_join_all;
use lock_core::internal::clock::{Clock, Tick};
use lock_core::internal::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use lock_core::internal::sync::{Mutex, lock};
use lock_core::store::kit::Backoff;
use lock_core::store::{StoreError, StoreErrorKind};
use lock_store_sequences::Session;
use tokio::sync::Notify;
use zookeeper_client::{
    Acls, Client, Connector, CreateMode, CreateOptions, Error, MultiWriteError, MultiWriteResult,
    SessionState, Stat,
};

use crate::certain::Certain;
use crate::errors::{is_over, of_connect, of_read, of_write};
use crate::names;
use crate::own::Names;
use crate::watched::Watched;

/// Number of epochs of a session. Each is a node.
pub(crate) const EPOCHS: usize = 16;

/// Number of rounds in which nodes that nobody wants are deleted. A request may still be on its way
/// in the first.
const ROUNDS: u64 = 3;

/// Maximum time for the nodes of a new session. Without a server, the client would wait for as long
/// as the session may live.
const PREPARATION: Duration = Duration::from_secs(10);

/// A directory that the server deletes some time after its last child, as Curator's.
pub(crate) const DIRECTORY: CreateOptions<'static> = CreateMode::Container.with_acls(Acls::anyone_all());

/// A node that ends with the session.
pub(crate) const EPHEMERAL: CreateOptions<'static> = CreateMode::Ephemeral.with_acls(Acls::anyone_all());

/// An entry of a queue.
pub(crate) const NUMBERED: CreateOptions<'static> =
    CreateMode::EphemeralSequential.with_acls(Acls::anyone_all());

/// How a manager reaches the ensemble.
pub(crate) struct Ensemble {
    pub(crate) connector: Connector,
    /// User and password, if the connector has not got them.
    pub(crate) login: Option<String>,
    /// `h1:2181,h2:2181`
    pub(crate) hosts: String,
    /// In front of every name. It begins and ends with a `/`.
    pub(crate) root: String,
    /// The time-out that sessions ask for,
    pub(crate) timeout: Duration,
    /// and the longest tick of the servers.
    pub(crate) tick: Duration,
}

/// A session.
pub(crate) struct Link {
    pub(crate) id: Session,
    client: Client,
    /// The nodes that it has made.
    pub(crate) names: Names,
    pub(crate) watched: Watched,
    clock: Clock,
    beat_path: String,
    pub(crate) root: String,
    timeout: Duration,
    certain: Mutex<Certain>,
    /// Told when `certain` changes, or when the session ends.
    changed: Notify,
    has_ended: AtomicBool,
    /// When somebody needed the session last, a [`Tick`].
    used: AtomicU64,
    /// Wakes the heartbeats.
    wanted: Arc<Notify>,
    /// In how many more rounds to delete nodes that nobody wants.
    untidy: AtomicU64,
}

impl Link {
    /// Begins a session.
    pub(crate) async fn begin(ensemble: &Ensemble) -> Result<Arc<Self>, StoreError> {
        let clock = Clock::Boot;
        let sent = clock.now();
        let connect = ensemble.connector.clone().connect(&ensemble.hosts);
        let client = connect.await.map_err(|error| of_connect(&error))?;
        let id = Session(client.session_id().0);
        let timeout = client.session_timeout();
        let link = Arc::new(Self {
            id,
            client,
            names: Names::default(),
            watched: Watched::default(),
            clock,
            beat_path: names::beat(&ensemble.root, id),
            root: ensemble.root.clone(),
            timeout,
            certain: Mutex::new(Certain::new(sent, clock.now(), timeout, ensemble.tick)),
            changed: Notify::new(),
            has_ended: AtomicBool::new(false),
            used: AtomicU64::new(sent.as_nanos()),
            wanted: Arc::default(),
            untidy: AtomicU64::new(0),
        });
        let prepares = async {
            if let Some(login) = &ensemble.login {
                let login = link.client.auth("digest", login.as_bytes());
                login.await.map_err(|error| of_connect(&error))?;
            }
            link.make_nodes().await
        };
        tokio::time::timeout(PREPARATION, prepares).await.unwrap_or_else(|_| {
            let text = format!("a new session got no answer within {PREPARATION:?}");
            Err(StoreError::new(StoreErrorKind::Unreachable, text))
        })?;
        tokio::spawn(beat_on(Arc::downgrade(&link), Arc::clone(&link.wanted)));
        Ok(link)
    }

    /// Makes the nodes of epochs, and that of heartbeats. They are made once: an epoch that began
    /// anew would let an old request in.
    async fn make_nodes(&self) -> Result<(), StoreError> {
        loop {
            let mut nodes = self.client.new_multi_writer();
            let epochs = (0..EPOCHS).map(|slot| self.epoch(slot));
            for path in epochs.chain([self.beat_path.clone()]) {
                nodes.add_create(&path, b"", &EPHEMERAL).map_err(|error| of_write(&error))?;
            }
            match nodes.commit().await.map_err(Error::from) {
                Ok(_) => return Ok(()),
                Err(Error::NoNode) => self.make_directory(&names::sessions(&self.root)).await?,
                Err(error) => return Err(self.failed(&error, of_write)),
            }
        }
    }

    /// Makes a directory, with those above it.
    pub(crate) async fn make_directory(&self, path: &str) -> Result<(), StoreError> {
        self.client.mkdir(path, &DIRECTORY).await.map_err(|error| self.failed(&error, of_write))
    }

    /// Returns the client when it is connected. Before that, nothing is sent: it would be sent when
    /// nobody waits for it any more.
    pub(crate) async fn client(&self) -> Result<&Client, StoreError> {
        let mut states = self.client.state_watcher();
        loop {
            match self.client.state() {
                SessionState::SyncConnected if !self.has_ended() => return Ok(&self.client),
                SessionState::SyncConnected | SessionState::Expired | SessionState::Closed => {
                    return Err(self.over());
                }
                SessionState::AuthFailed => {
                    self.end();
                    return Err(of_connect(&Error::AuthFailed));
                }
                SessionState::ConnectedReadOnly | SessionState::Disconnected => {
                    tokio::select! {
                        _ = states.changed() => {}
                        () = self.changed.notified() => {}
                    }
                }
            }
        }
    }

    /// Returns the store's error for one of the client's.
    pub(crate) fn failed(&self, error: &Error, of: impl FnOnce(&Error) -> StoreError) -> StoreError {
        if is_over(error) {
            self.end();
        }
        of(error)
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.has_ended.load(Ordering::Acquire)
    }

    /// Records that the session has ended.
    pub(crate) fn end(&self) {
        self.has_ended.store(true, Ordering::Release);
        self.wanted.notify_one();
        self.changed.notify_waiters();
    }

    /// Records that the session has ended. Returns the error of a call in it.
    pub(crate) fn over(&self) -> StoreError {
        self.end();
        StoreError::new(StoreErrorKind::NotReady, "the session with ZooKeeper has ended")
    }

    /// Waits until the session has ended.
    pub(crate) async fn ended(&self) {
        loop {
            let changed = self.changed.notified();
            if self.has_ended() {
                return;
            }
            changed.await;
        }
    }

    /// Returns until when the session is certain to live.
    pub(crate) fn certain_until(&self) -> Tick {
        lock(&self.certain).until()
    }

    /// Waits until the session is certain to live for another `lease`. Returns until when it is;
    /// `None` if it has ended.
    pub(crate) async fn last(&self, lease: Duration) -> Option<Tick> {
        self.used.store(self.clock.now().as_nanos(), Ordering::Release);
        self.wanted.notify_one();
        loop {
            let changed = self.changed.notified();
            let (until, next, longest) = {
                let certain = lock(&self.certain);
                (certain.until(), certain.next(), certain.longest_lease())
            };
            let now = self.clock.now();
            if self.has_ended() {
                return None;
            }
            if until >= now + lease || lease > longest {
                return Some(until);
            }
            // It takes three heartbeats until it is certain for long again. Another one is sooner.
            if self.names.is_empty() && next + self.tick() < now {
                self.end();
                return None;
            }
            changed.await;
        }
    }

    fn tick(&self) -> Duration {
        lock(&self.certain).tick()
    }

    /// Writes through the leader, as a heartbeat. Later reads of the session are not older.
    pub(crate) async fn beat(&self) -> Result<(), StoreError> {
        let client = self.client().await?;
        let sent = self.clock.now();
        match client.set_data(&self.beat_path, b"", None).await {
            Ok(_) => {
                lock(&self.certain).heard(sent, self.clock.now());
                self.changed.notify_waiters();
                Ok(())
            }
            Err(Error::NoNode) => {
                // The session has ended, or somebody has deleted its nodes.
                Err(self.over())
            }
            Err(error) => Err(self.failed(&error, of_write)),
        }
    }

    /// Whether the heartbeats have to go on.
    fn is_needed(&self) -> bool {
        let used = Tick::from_nanos(self.used.load(Ordering::Acquire));
        !self.names.is_empty() || used + self.timeout > self.clock.now() || self.is_untidy()
    }

    fn is_untidy(&self) -> bool {
        self.untidy.load(Ordering::Acquire) > 0
    }

    /// Records that there may be nodes which nobody wants.
    pub(crate) fn make_tidy(&self) {
        self.untidy.store(ROUNDS, Ordering::Release);
        self.wanted.notify_one();
    }

    /// Deletes the nodes of the session that nobody wants.
    async fn tidy(&self) -> Result<(), StoreError> {
        let mut paths = match self.client().await?.list_ephemerals(names::directory(&self.root)).await {
            Ok(paths) => paths,
            // Servers before 3.6 can't tell.
            Err(Error::Unimplemented) => Vec::new(),
            Err(error) => return Err(self.failed(&error, of_read)),
        };
        let sessions = names::sessions(&self.root);
        paths.retain(|path| names::split(path).0 != sessions);
        let unwanted = self.names.unwanted(self.id, paths);
        for paths in unwanted.chunks(AT_ONCE) {
            try_join_all(paths.iter().map(|path| self.delete(path))).await?;
        }
        let _ = self.untidy.fetch_update(Ordering::AcqRel, Ordering::Acquire, |left| left.checked_sub(1));
        Ok(())
    }

    /// Returns the path of an epoch.
    pub(crate) fn epoch(&self, slot: usize) -> String {
        names::epoch(&self.root, self.id, slot)
    }

    /// Lists the nodes in a directory, with its revision; `None` if it is not there.
    pub(crate) async fn children(&self, path: &str) -> Result<Option<(Vec<String>, u64)>, StoreError> {
        match self.client().await?.get_children(path).await {
            Ok((names, stat)) => Ok(Some((names, revision(stat.pzxid)))),
            Err(Error::NoNode) => Ok(None),
            Err(error) => Err(self.failed(&error, of_read)),
        }
    }

    /// Returns what is known of a node; `None` if it is not there.
    pub(crate) async fn stat(&self, path: &str) -> Result<Option<Stat>, StoreError> {
        self.client().await?.check_stat(path).await.map_err(|error| self.failed(&error, of_read))
    }

    /// Deletes a node. Returns whether it was there.
    pub(crate) async fn delete(&self, path: &str) -> Result<bool, StoreError> {
        match self.client().await?.delete(path, None).await {
            Ok(()) => Ok(true),
            Err(Error::NoNode) => Ok(false),
            Err(error) => Err(self.failed(&error, of_write)),
        }
    }

    /// Makes all changes, or none.
    pub(crate) async fn commit(&self, changes: &[Change]) -> Result<Vec<MultiWriteResult>, Failed> {
        let client = self.client().await.map_err(Failed::Store)?;
        let mut multi = client.new_multi_writer();
        for change in changes {
            let added = match change {
                Change::Check(path, version) => multi.add_check_version(path, *version),
                Change::Create(path, data, options) => multi.add_create(path, data.as_bytes(), options),
                Change::Write(path, version) => multi.add_set_data(path, b"", Some(*version)),
                Change::Delete(path) => multi.add_delete(path, None),
            };
            added.map_err(|error| Failed::Store(of_write(&error)))?;
        }
        match multi.commit().await {
            Ok(results) => Ok(results),
            Err(MultiWriteError::OperationFailed { index, source }) => Err(Failed::At(index, source)),
            Err(MultiWriteError::RequestFailed { source }) => {
                Err(Failed::Store(self.failed(&source, of_write)))
            }
        }
    }
}

/// Number of nodes that are read or deleted at once.
pub(crate) const AT_ONCE: usize = 100;

/// A change of a node, or a condition.
pub(crate) enum Change {
    /// It is there, with this version; any, if that is -1.
    Check(String, i32),
    Create(String, Arc<str>, CreateOptions<'static>),
    /// Writes nothing, if it has this version.
    Write(String, i32),
    Delete(String),
}

/// Why nothing was changed, unless the store's error says that this is not known.
pub(crate) enum Failed {
    /// The change with this index can't be made.
    At(usize, Error),
    Store(StoreError),
}

/// Returns a revision of the store.
pub(crate) fn revision(zxid: i64) -> u64 {
    u64::try_from(zxid).unwrap_or_default()
}

/// Sends a heartbeat each tick while the session is needed, and keeps it tidy.
async fn beat_on(link: Weak<Link>, wanted: Arc<Notify>) {
    let mut backoff = Backoff::default();
    loop {
        let Some(link) = link.upgrade() else { return };
        if link.has_ended() {
            return;
        }
        if !link.is_needed() {
            drop(link);
            wanted.notified().await;
            continue;
        }
        let pause = lock(&link.certain).next().since(link.clock.now());
        if !pause.is_zero() {
            drop(link);
            tokio::time::sleep(pause).await;
            continue;
        }
        let mut done = link.beat().await;
        if done.is_ok() && link.is_untidy() {
            done = link.tidy().await;
        }
        let is_ok = done.is_ok();
        drop(link);
        if is_ok {
            backoff = Backoff::default();
        } else {
            tokio::time::sleep(backoff.next_pause()).await;
        }
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        // The heartbeats end.
        self.wanted.notify_one();
    }
}

impl fmt::Debug for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Link").field("id", &self.id).finish_non_exhaustive()
    }
}

impl fmt::Debug for Ensemble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ensemble").field("root", &self.root).finish_non_exhaustive()
    }
}
