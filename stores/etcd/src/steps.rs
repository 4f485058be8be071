//! [`Etcd`]: the steps of an [`OrderedStore`], as transactions.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use lock_core::store::{Abilities, Cursor, Kind, StoreError, StoreErrorKind};
use lock_store_sequences::{
    Before, Class, Enter, Entered, Entry, Epoch, Gone, Leave, Left, Life, Listed, OrderedStore, Page, Place,
    Session,
};
use tokio_stream::StreamExt;
use tonic::Status;

use crate::client::{
    Client, LEASE_GRANT, LEASE_KEEP_ALIVE, LEASE_TIME_TO_LIVE, RANGE, STATUS, TXN, is_lease_gone,
};
use crate::leaving::Leaving;
use crate::messages::{
    ASCENDING, BY_CREATION, Compare, DeleteRangeRequest, Done, KeyValue, LeaseGrantRequest,
    LeaseGrantResponse, LeaseKeepAliveRequest, LeaseKeepAliveResponse, LeaseTimeToLiveRequest,
    LeaseTimeToLiveResponse, Op, PutRequest, RangeRequest, RangeResponse, RequestOp, StatusRequest,
    StatusResponse, TxnRequest, TxnResponse,
};
use crate::names::{self, Tokens};
use crate::numbers::Numbers;
use crate::ranges::{
    Older, before_of, born_at, check, first_of, foreign_entry, get, last_of, listed, moment_of, older_among,
    revision, signed,
};
use crate::watches::{BEGIN, News, Watches};

/// The longest lease of etcd, in seconds.
const LONGEST: u64 = 9_000_000_000;

/// Maximum number of conditions and of steps of a transaction: the default of etcd's
/// `--max-txn-ops`.
const MOST_STEPS: usize = 128;

/// Maximum number of keys in a lock. Each takes a deletion, and one condition or, for a reader,
/// three.
const MOST_KEYS: usize = 64;

/// Number of keys in a page of a scan.
const PAGE: i64 = 500;

/// etcd in the role of an [`OrderedStore`].
#[derive(Debug)]
pub struct Etcd {
    client: Arc<Client>,
    watches: Arc<Watches>,
    /// In front of every name.
    root: String,
    tokens: Tokens,
    numbers: Numbers,
    abilities: Abilities,
}

impl Etcd {
    pub(crate) fn new(client: Client, root: String, tokens: Tokens, abilities: Abilities) -> Self {
        let client = Arc::new(client);
        let (watches, numbers) = (Watches::new(Arc::clone(&client)), Numbers::default());
        Self { watches, client, root, tokens, numbers, abilities }
    }

    /// Returns the name of an entry, or one that no entry has if it was never entered.
    fn key(&self, entered: Session, entry: &Entry) -> Vec<u8> {
        let number = self.numbers.last(entered, entry).unwrap_or(u32::MAX);
        names::entry(entered, entry, self.tokens, number)
    }

    async fn txn(&self, txn: TxnRequest) -> Result<Answers, StoreError> {
        let answer = self.client.call(TXN, &txn).await.map_err(|error| self.explained(&error));
        let TxnResponse { header, succeeded, responses } = answer?;
        let all = responses.into_iter().filter_map(|response| response.response).collect();
        Ok(Answers { moment: moment_of(header), succeeded, all })
    }

    async fn range(&self, range: RangeRequest) -> Result<RangeResponse, StoreError> {
        self.client.call(RANGE, &range).await.map_err(|error| self.explained(&error))
    }

    /// Adds to an error which rights are missing.
    fn explained(&self, error: &StoreError) -> StoreError {
        let text = error.to_string();
        if !text.contains("permission denied") {
            return error.clone();
        }
        let grant = format!("etcdctl role grant-permission ROLE readwrite --prefix {:?}", self.root);
        StoreError::new(error.kind(), format!("{text}; one of the user's roles needs the right: `{grant}`"))
    }

    /// Reads these keys and ranges, in as many transactions as it takes. Returns the revision of
    /// the last one.
    async fn look(&self, looks: Vec<RequestOp>) -> Result<(u64, Vec<RangeResponse>), StoreError> {
        let (mut moment, mut all) = (0, Vec::with_capacity(looks.len()));
        for looks in looks.chunks(MOST_STEPS) {
            let txn = TxnRequest { success: looks.to_vec(), ..TxnRequest::default() };
            let answers = self.txn(txn).await?;
            moment = answers.moment;
            all.extend(answers.into_ranges());
        }
        Ok((moment, all))
    }

    /// Looks up the places of entries that were made, and deletes them again if they can't be used.
    async fn found(&self, enter: &Enter, born: &[u64]) -> Result<Entered, StoreError> {
        let all = enter.entries.iter().cloned().zip(born.iter().copied()).collect();
        let (moment, places) = match self.places(enter.session, all).await {
            Err(foreign) if foreign.kind() == StoreErrorKind::ForeignData => {
                self.undo(enter).await?;
                return Err(foreign);
            }
            // The entries are there.
            Err(error) => return Err(unanswered(&error)),
            Ok(found) => found,
        };
        // One of them is gone already: it has to begin anew.
        let found: Vec<bool> = places.iter().map(Option::is_some).collect();
        Ok(match places.into_iter().collect() {
            Some(places) => Entered::All { moment, places },
            None => Entered::Partly(found),
        })
    }

    /// Makes the transaction of [`enter`](OrderedStore::enter). `None`: a name was taken, and the
    /// entry has another one now.
    async fn try_to_enter(&self, enter: &Enter) -> Result<Option<Entered>, StoreError> {
        let &Enter { session, epoch, stays, .. } = enter;
        let numbers = enter.entries.iter().map(|entry| self.numbers.last(session, entry));
        let Some(numbers) = numbers.collect::<Option<Vec<u32>>>() else {
            let text = "an entry has no name: `remember` comes before `enter`";
            return Err(StoreError::new(StoreErrorKind::Refused, text));
        };
        let key_of = |(entry, number): (&Entry, &u32)| names::entry(session, entry, self.tokens, *number);
        let keys: Vec<Vec<u8>> = enter.entries.iter().zip(&numbers).map(key_of).collect();
        let epoch_key = names::epoch(&self.root, session, epoch.slot);
        let mut compare = vec![Compare::version(epoch_key.clone(), epoch.version)];
        let (mut success, mut failure) = (Vec::new(), vec![get(epoch_key)]);
        for (entry, born) in &enter.beside {
            compare.push(Compare::created(self.key(session, entry), signed(*born)));
        }
        // One lock needs no second transaction.
        let is_alone = enter.entries.len() == 1;
        for (entry, key) in enter.entries.iter().zip(&keys) {
            let put = PutRequest { key: key.clone(), value: entry.owner.as_str().into(), lease: session.0 };
            success.push(Op::Put(put).into());
            let rivals = names::rivals(&entry.lock, entry.class);
            if stays || entry.class == Class::Read {
                // Otherwise it is among its rivals.
                compare.push(Compare::created(key.clone(), 0));
            }
            if !stays {
                let free = |(begin, range_end)| Compare { range_end, ..Compare::created(begin, 0) };
                compare.extend(rivals.into_iter().map(free));
            } else if is_alone {
                success.extend(rivals.into_iter().map(|range| last_of(range, None)));
            }
            failure.push(get(key.clone()));
        }
        if enter.entries.len() > MOST_KEYS || compare.len() > MOST_STEPS {
            let text = format!("a lock in etcd has at most {MOST_KEYS} keys, or 42 for readers; use fewer");
            return Err(StoreError::new(StoreErrorKind::Unsupported, text));
        }
        let answers = match self.txn(TxnRequest { compare, success, failure }).await {
            Err(error) if is_lease_gone(&error) => return Ok(Some(Entered::Ended)),
            // A server that has just reached its limit executes the transaction nevertheless.
            Err(error) if error.kind() == StoreErrorKind::Full => {
                self.undo(enter).await?;
                return Err(error);
            }
            answers => answers?,
        };
        let moment = answers.moment;
        if answers.succeeded && !stays {
            let places = enter.entries.iter().map(|_| Place { born: moment, before: None }).collect();
            return Ok(Some(Entered::All { moment, places }));
        }
        if answers.succeeded {
            let own = keys.first().map_or(&[][..], Vec::as_slice);
            let before: Option<Vec<_>> =
                answers.ranges().map(|range| older_among(range, own, moment)).collect();
            return match before.filter(|_| is_alone) {
                Some(before) => match before_of(&before, self.tokens) {
                    Ok(before) => {
                        let places = vec![Place { born: moment, before }];
                        Ok(Some(Entered::All { moment, places }))
                    }
                    Err(foreign) => {
                        self.undo(enter).await?;
                        Err(foreign)
                    }
                },
                None => self.found(enter, &vec![moment; enter.entries.len()]).await.map(Some),
            };
        }
        let mut ranges = answers.ranges();
        let version = ranges.next().and_then(|range| range.kvs.first()).map_or(0, |kv| kv.version);
        if version != epoch.version {
            return Ok(Some(Entered::Late(version)));
        }
        let seen: Vec<_> = ranges.map(|range| range.kvs.first()).collect();
        let owned = |(entry, kv): (&Entry, &Option<&KeyValue>)| {
            kv.is_none_or(|kv| kv.value == entry.owner.as_str().as_bytes())
        };
        let mut are_owned = enter.entries.iter().zip(&seen).map(owned);
        if are_owned.any(|is_owned| !is_owned) {
            // A late copy of a request that nobody could withdraw.
            for ((entry, number), kv) in enter.entries.iter().zip(numbers).zip(&seen) {
                if !owned((entry, kv)) {
                    self.numbers.change(session, entry, number);
                }
            }
            return Ok(None);
        }
        let born: Vec<_> = seen.into_iter().map(|kv| kv.map(|kv| revision(kv.create_revision))).collect();
        let found: Vec<bool> = born.iter().map(Option::is_some).collect();
        let entered = match born.into_iter().collect::<Option<Vec<u64>>>() {
            Some(born) if enter.beside.is_empty() => self.found(enter, &born).await?,
            _ if found.contains(&true) => Entered::Partly(found),
            _ => match self.busy(enter).await? {
                // Nothing is in the way, so one of those beside is gone.
                Entered::Busy { items, .. } if items.is_empty() && !enter.beside.is_empty() => {
                    Entered::Partly(found)
                }
                busy => busy,
            },
        };
        Ok(Some(entered))
    }

    /// Deletes those of the names that are what they should be, and ends an epoch. All that is
    /// known of the names is true at that moment.
    async fn delete(
        &self,
        session: Session,
        names: &mut [Leaving],
        epoch: Option<Epoch>,
    ) -> Result<Result<(), Left>, StoreError> {
        loop {
            let (mut compare, mut success, mut failure) = (Vec::new(), Vec::new(), Vec::new());
            if let Some(epoch) = epoch {
                let key = names::epoch(&self.root, session, epoch.slot);
                compare.push(Compare::version(key.clone(), epoch.version));
                failure.push(get(key.clone()));
                success.push(Op::Put(PutRequest { key, value: Vec::new(), lease: session.0 }).into());
            }
            for name in &*names {
                let key = || name.key.clone();
                compare.push(name.condition());
                failure.push(get(key()));
                if name.is_own() {
                    success.push(Op::Delete(DeleteRangeRequest { key: key() }).into());
                }
            }
            if success.is_empty() {
                return Ok(Ok(()));
            }
            let answers = match self.txn(TxnRequest { compare, success, failure }).await {
                Err(error) if is_lease_gone(&error) => return Ok(Err(Left::Ended)),
                answers => answers?,
            };
            if answers.succeeded {
                return Ok(Ok(()));
            }
            let mut seen = answers.ranges().map(|range| range.kvs.first());
            if let Some(epoch) = epoch {
                let version = seen.next().flatten().map_or(0, |kv| kv.version);
                if version != epoch.version {
                    return Ok(Err(Left::Late(version)));
                }
            }
            names.iter_mut().zip(seen).for_each(|(name, kv)| name.see(kv));
        }
    }

    /// Deletes entries again.
    async fn undo(&self, enter: &Enter) -> Result<(), StoreError> {
        let session = enter.session;
        let entries = enter.entries.iter().map(|entry| (entry.clone(), None)).collect();
        let left = self.leave(Leave { session, entries, epoch: None }).await;
        left.map(|_| ()).map_err(|error| unanswered(&error))
    }

    /// Returns which entries would have to wait.
    async fn busy(&self, enter: &Enter) -> Result<Entered, StoreError> {
        let rivals = enter.entries.iter().map(|entry| names::rivals(&entry.lock, entry.class));
        let rivals: Vec<_> = rivals.collect();
        let looks = rivals.iter().flatten().map(|range| first_of(range.clone())).collect();
        let (moment, found) = self.look(looks).await?;
        let mut found = found.iter();
        let (mut items, mut before) = (Vec::new(), None);
        for (item, ranges) in rivals.iter().enumerate() {
            let mut ahead = 0;
            for range in found.by_ref().take(ranges.len()) {
                range.kvs.first().map_or(Ok(()), |kv| check(kv, self.tokens))?;
                ahead += range.count;
            }
            if ahead > 0 {
                items.push(item);
                before.get_or_insert(ahead);
            }
        }
        Ok(Entered::Busy { moment, items, ahead: u32::try_from(before.unwrap_or(0)).unwrap_or(u32::MAX) })
    }

    /// Lets an entry of this birth end with another session if it has this version, and gives it
    /// another one. So a copy that arrives late does nothing, also if the session is the same
    /// again.
    pub(crate) async fn attach_if(
        &self,
        entered: Session,
        entry: &Entry,
        born: u64,
        to: Session,
        version: i64,
    ) -> Result<Attached, StoreError> {
        let key = self.key(entered, entry);
        let compare =
            vec![Compare::created(key.clone(), signed(born)), Compare::version(key.clone(), version)];
        let put = PutRequest { key: key.clone(), value: entry.owner.as_str().into(), lease: to.0 };
        let (success, failure) = (vec![Op::Put(put).into()], vec![get(key)]);
        let answers = self.txn(TxnRequest { compare, success, failure }).await;
        let answers = answers.map_err(|error| match is_lease_gone(&error) {
            true => StoreError::new(StoreErrorKind::NotReady, error.to_string()),
            false => error,
        })?;
        if answers.succeeded {
            return Ok(Attached::Done);
        }
        let found = answers.ranges().next().and_then(|range| range.kvs.first());
        let same = found.filter(|kv| revision(kv.create_revision) == born);
        Ok(same.map_or(Attached::Gone, |kv| Attached::Version(kv.version)))
    }

    /// Sends one heartbeat.
    async fn keep_alive(&self, session: Session) -> Result<Option<Duration>, StoreError> {
        let once = tokio_stream::once(LeaseKeepAliveRequest { id: session.0 });
        // The server ends the stream when the requests end, so they don't.
        let requests = once.chain(tokio_stream::pending());
        let (server, mut answers) =
            self.client.stream::<_, LeaseKeepAliveResponse>(LEASE_KEEP_ALIVE, requests).await?;
        match answers.next().await {
            Some(Ok(answer)) if answer.id == session.0 => Ok(seconds(answer.ttl)),
            other => {
                let status = match other {
                    Some(Err(status)) => status,
                    _ => Status::unavailable("the stream of keep-alives has ended"),
                };
                let error = self.client.stream_failed(server, &status, None);
                // It may have been executed, but changes nothing else.
                Err(match error.kind() {
                    StoreErrorKind::Unanswered => {
                        StoreError::new(StoreErrorKind::Unreachable, error.to_string())
                    }
                    _ => error,
                })
            }
        }
    }
}

/// The outcome of an attempt to let an entry end with another session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Attached {
    Done,
    /// The entry has this version.
    Version(i64),
    Gone,
}

/// The answers of a transaction.
struct Answers {
    moment: u64,
    succeeded: bool,
    all: Vec<Done>,
}

impl Answers {
    fn ranges(&self) -> impl Iterator<Item = &RangeResponse> {
        self.all.iter().filter_map(|done| if let Done::Range(range) = done { Some(range) } else { None })
    }

    fn into_ranges(self) -> impl Iterator<Item = RangeResponse> {
        self.all.into_iter().filter_map(|done| if let Done::Range(range) = done { Some(range) } else { None })
    }
}

impl OrderedStore for Etcd {
    fn abilities(&self) -> &Abilities {
        &self.abilities
    }

    /// A third longer than the lease, so that not every acquire needs a heartbeat. Rounded up by an
    /// eighth at most, so that leases which are nearly the same share a session.
    fn timeout_for(&self, lease: Duration) -> Duration {
        let seconds = u64::try_from(lease.as_millis().div_ceil(750)).unwrap_or(LONGEST).clamp(2, LONGEST);
        let step = (seconds.next_power_of_two() / 16).max(1);
        Duration::from_secs(seconds.next_multiple_of(step).min(LONGEST))
    }

    fn allows(&self, lock: &str, _kind: Kind) -> Result<(), StoreError> {
        if names::is_ambiguous(lock) {
            let text = "a name in etcd can't end in `/read` or `/write`, where readers and writers of a lock are; \
                        use another name";
            return Err(StoreError::new(StoreErrorKind::Unsupported, text));
        }
        if names::is_reserved(&self.root, lock) {
            let text = format!(
                "the name {:?} is reserved for the store's own keys; use another name",
                names::EPOCHS
            );
            return Err(StoreError::new(StoreErrorKind::Unsupported, text));
        }
        Ok(())
    }

    async fn begin(&self, timeout: Duration) -> Result<(Session, Duration), StoreError> {
        let ttl = i64::try_from(timeout.as_millis().div_ceil(1000).max(1)).unwrap_or(i64::MAX);
        let LeaseGrantResponse { id, ttl, error } =
            self.client.call(LEASE_GRANT, &LeaseGrantRequest { ttl }).await?;
        match seconds(ttl).filter(|_| error.is_empty() && id != 0) {
            Some(timeout) => Ok((Session(id), timeout)),
            None => {
                let text = format!("etcd has granted no lease of {timeout:?}: {error}");
                Err(StoreError::new(StoreErrorKind::Refused, text))
            }
        }
    }

    async fn beat(&self, session: Session, _lease: Duration) -> Result<Option<Duration>, StoreError> {
        match self.keep_alive(session).await {
            // The login was too old, or this server has no leader.
            Err(error) if error.kind() == StoreErrorKind::NotReady => self.keep_alive(session).await,
            kept => kept,
        }
    }

    fn remember(&self, session: Session, entry: &Entry) {
        self.numbers.remember(session, entry);
    }

    fn forget(&self, session: Session, entry: &Entry) {
        self.numbers.forget(session, entry);
    }

    async fn enter(&self, enter: Enter) -> Result<Entered, StoreError> {
        loop {
            if let Some(entered) = self.try_to_enter(&enter).await? {
                return Ok(entered);
            }
        }
    }

    async fn places(
        &self,
        session: Session,
        entries: Vec<(Entry, u64)>,
    ) -> Result<(u64, Vec<Option<Place>>), StoreError> {
        let (mut looks, mut counts) = (Vec::new(), Vec::new());
        for (entry, born) in &entries {
            looks.push(get(self.key(session, entry)));
            let rivals = names::rivals(&entry.lock, entry.class);
            counts.push(rivals.len());
            looks.extend(rivals.into_iter().map(|range| last_of(range, Some(*born))));
        }
        let (moment, found) = self.look(looks).await?;
        let mut found = found.into_iter();
        let mut places = Vec::with_capacity(entries.len());
        for ((_, born), rivals) in entries.iter().zip(counts) {
            let own = found.next();
            let before: Vec<_> = found
                .by_ref()
                .take(rivals)
                .map(|range| Older { is_all: range.kvs.len() < 2, kvs: range.kvs })
                .collect();
            places.push(match own.as_ref().and_then(born_at) {
                Some(own) if own == *born => {
                    Some(Place { born: *born, before: before_of(&before, self.tokens)? })
                }
                _ => None,
            });
        }
        Ok((moment, places))
    }

    async fn exist(&self, session: Session, entries: Vec<(Entry, u64)>) -> Result<Vec<bool>, StoreError> {
        let looks = entries.iter().map(|(entry, _)| get(self.key(session, entry))).collect();
        let (_, found) = self.look(looks).await?;
        let born = found.iter().map(born_at);
        Ok(born.zip(&entries).map(|(found, (_, born))| found == Some(*born)).collect())
    }

    async fn attach(
        &self,
        entered: Session,
        entry: &Entry,
        born: u64,
        to: Session,
    ) -> Result<bool, StoreError> {
        let mut version = 1;
        loop {
            match self.attach_if(entered, entry, born, to, version).await? {
                Attached::Done => return Ok(true),
                Attached::Version(found) => version = found,
                Attached::Gone => return Ok(false),
            }
        }
    }

    async fn advance(&self, entered: Session, entry: &Entry, born: u64) -> Result<Option<u64>, StoreError> {
        let key = names::epoch(&self.root, entered, Self::EPOCHS);
        let put = PutRequest { key, value: Vec::new(), lease: entered.0 };
        let compare = vec![Compare::created(self.key(entered, entry), signed(born))];
        let txn = TxnRequest { compare, success: vec![Op::Put(put).into()], failure: Vec::new() };
        match self.txn(txn).await {
            Err(error) if is_lease_gone(&error) => Ok(None),
            answers => answers.map(|answers| answers.succeeded.then_some(answers.moment)),
        }
    }

    async fn leave(&self, leave: Leave) -> Result<Left, StoreError> {
        let Leave { session, entries, epoch } = leave;
        let mut names: Vec<Leaving> = Vec::with_capacity(entries.len());
        let leaving = |entry: &Entry, number, born| {
            Leaving::new(names::entry(session, entry, self.tokens, number), entry, born)
        };
        let mut last = Vec::with_capacity(entries.len());
        for (entry, born) in &entries {
            let number = self.numbers.last(session, entry);
            names.extend(number.map(|number| leaving(entry, number, *born)));
            last.push(number);
        }
        if let Err(left) = self.delete(session, &mut names, epoch).await? {
            return Ok(left);
        }
        let mut deleted = names.iter().map(Leaving::is_own);
        let found = last.iter().map(|last| last.is_some() && deleted.next() == Some(true)).collect();
        // Under other names that it has had are entries of somebody else, unless a copy came late.
        // Nothing enters any more: the epoch is over, or all copies had their answers.
        let mut others = Vec::new();
        for ((entry, _), last) in entries.iter().zip(last) {
            let numbers = self.numbers.all(session, entry).into_iter();
            others.extend(numbers.filter(|n| Some(*n) != last).map(|number| leaving(entry, number, None)));
        }
        for others in others.chunks_mut(MOST_STEPS / 2) {
            if let Err(left) = self.delete(session, others, None).await? {
                return Ok(left);
            }
        }
        Ok(Left::All(found))
    }

    async fn gone(
        &self,
        session: Session,
        own: Entry,
        born: u64,
        before: Option<Before>,
    ) -> Result<Gone, StoreError> {
        // The own key, and the one before it.
        let mut keys = vec![(self.key(session, &own), born)];
        keys.extend(before.map(|before| (before.name.to_vec(), before.born)));
        let mut watches: Vec<_> = keys.iter().map(|(key, _)| self.watches.watch(key.clone())).collect();
        if let [own] = &mut *watches {
            // Thousands of holds may begin at once. Renewals look whether they are there.
            while let Some(news) = own.next().await {
                if matches!(news, News::Deleted(_)) {
                    return Ok(Gone::Own);
                }
            }
            return Ok(Gone::Unsure);
        }
        let begun = async {
            for watch in &mut watches {
                if watch.next().await != Some(News::Begun) {
                    return false;
                }
            }
            true
        };
        if !tokio::time::timeout(BEGIN, begun).await.unwrap_or(false) {
            return Err(StoreError::new(StoreErrorKind::Unreachable, "a watch of etcd has not begun"));
        }
        // What has happened before the watch began is seen here.
        let (moment, found) = self.look(keys.iter().map(|(key, _)| get(key.clone())).collect()).await?;
        let mut are_there =
            found.iter().map(born_at).zip(&keys).map(|(found, (_, born))| found == Some(*born));
        if are_there.next() != Some(true) {
            return Ok(Gone::Own);
        }
        if are_there.any(|is_there| !is_there) {
            return Ok(Gone::Unsure);
        }
        let [own, before] = &mut *watches else { return Ok(Gone::Unsure) };
        loop {
            let (news, is_before) = tokio::select! {
                biased;
                news = own.next() => (news, false),
                news = before.next() => (news, true),
            };
            match news {
                None => return Ok(Gone::Unsure),
                Some(News::Deleted(at)) if revision(at) > moment => {
                    return Ok(if is_before { Gone::Before(revision(at)) } else { Gone::Own });
                }
                Some(_) => {}
            }
        }
    }

    async fn list(&self, lock: &str) -> Result<(u64, Vec<Listed>), StoreError> {
        let (key, range_end) = names::queue(lock);
        let range = RangeRequest {
            key,
            range_end,
            sort_order: ASCENDING,
            sort_target: BY_CREATION,
            ..RangeRequest::default()
        };
        let RangeResponse { header, kvs, .. } = self.range(range).await?;
        Ok((moment_of(header), kvs.iter().map(|kv| listed(lock, kv)).collect()))
    }

    async fn remaining(&self, session: Session) -> Result<Life, StoreError> {
        if session.0 == 0 {
            // It has no lease, and does not end.
            return Ok(Life::For(Duration::from_secs(LONGEST)));
        }
        let request = LeaseTimeToLiveRequest { id: session.0 };
        let LeaseTimeToLiveResponse { ttl } = self.client.call(LEASE_TIME_TO_LIVE, &request).await?;
        Ok(u64::try_from(ttl).map_or(Life::Ended, |ttl| Life::For(Duration::from_secs(ttl))))
    }

    async fn remove(&self, entry: &Listed) -> Result<bool, StoreError> {
        let key = entry.name.to_vec();
        if entry.session.0 == 0 {
            return Err(foreign_entry(&key));
        }
        let txn = TxnRequest {
            compare: vec![Compare::created(key.clone(), signed(entry.born))],
            success: vec![Op::Delete(DeleteRangeRequest { key }).into()],
            failure: Vec::new(),
        };
        Ok(self.txn(txn).await?.succeeded)
    }

    async fn scan(&self, prefix: &str, after: Option<Cursor>) -> Result<Page, StoreError> {
        let key = match &after {
            Some(cursor) => cursor.as_bytes().to_vec(),
            None if prefix.is_empty() => vec![0],
            None => prefix.into(),
        };
        let range =
            RangeRequest { key, range_end: names::end_of(prefix), limit: PAGE, ..RangeRequest::default() };
        let RangeResponse { kvs, more, .. } = self.range(range).await?;
        let mut locks: BTreeMap<Arc<str>, Vec<Listed>> = BTreeMap::new();
        let mut last = None;
        // Keys without a lease belong to no lock.
        for kv in kvs.iter().filter(|kv| kv.lease != 0) {
            let Some(lock) = names::lock_of(&kv.key).filter(|lock| !names::is_reserved(&self.root, lock))
            else {
                continue;
            };
            locks.entry(Arc::clone(&lock)).or_default().push(listed(&lock, kv));
            last = Some(lock);
        }
        let mut next = None;
        if more {
            // The queue of the last lock may go on behind this page.
            let last_key = kvs.last().map(|kv| kv.key.clone()).unwrap_or_default();
            let is_cut = last.filter(|lock| names::lock_of(&last_key).as_ref() == Some(lock));
            next = match is_cut {
                Some(lock) => {
                    let queue = self.list(&lock).await?.1;
                    locks.insert(Arc::clone(&lock), queue);
                    Some(names::queue(&lock).1)
                }
                None => Some([last_key.as_slice(), &[0]].concat()),
            };
        }
        let locks = locks.into_iter().map(|(lock, mut queue)| {
            queue.sort_by_key(|entry| entry.born);
            (lock.to_string(), queue)
        });
        Ok(Page { locks: locks.collect(), next: next.map(Cursor::new) })
    }

    async fn check(&self) -> Result<(), StoreError> {
        let StatusResponse { version } = self.client.call(STATUS, &StatusRequest {}).await?;
        crate::open::check_version(&version)?;
        // To read and delete what is not there leaves nothing behind, and needs all rights.
        let key = format!("{}{}/check", self.root, names::EPOCHS).into_bytes();
        let delete = Op::Delete(DeleteRangeRequest { key: key.clone() }).into();
        self.txn(TxnRequest { success: vec![get(key), delete], ..TxnRequest::default() }).await.map(|_| ())
    }
}

/// Returns the error of a step that may have been executed in part.
fn unanswered(error: &StoreError) -> StoreError {
    StoreError::new(StoreErrorKind::Unanswered, error.to_string())
}

/// Returns the time-to-live that a server has answered; `None` if the lease has ended.
fn seconds(ttl: i64) -> Option<Duration> {
    u64::try_from(ttl).ok().filter(|ttl| *ttl > 0).map(Duration::from_secs)
}
