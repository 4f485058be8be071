//! [`Call`]: one call and its deadline, and how it makes steps.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use futures_util::future::join_all;
use lock_core::internal::clock::{Clock, Tick};
use lock_core::store::kit::Backoff;
use lock_core::store::{ServerTime, StoreError, StoreErrorKind};
use lock_store_records::rows::{
    Found, MARK, Rows, Shared, Steps, Swap, Swapped, Swaps, Tried, Was, micros, new_version, swap, time,
};
use lock_store_records::{Access, Bell, Change, Changed, Event, Name, Record};
use mongodb::bson::Document;
use tokio::sync::SemaphorePermit;

use crate::classify::{During, Fault, failed, fault_of_commit};
use crate::documents::{self, COLLECTION, Read, TOGETHER, Told, Write, batch_of, id};
use crate::records::Mongo;
use crate::server::Bounds;

/// Number of documents that are written side by side, each by itself.
const ABREAST: u32 = 4;

/// Maximum pause between two attempts to change documents that others change. Their steps go on
/// meanwhile, and win.
const LOST: Duration = Duration::from_millis(80);

/// One call and its deadline.
#[derive(Clone, Copy)]
pub(crate) struct Call<'a> {
    pub(crate) mongo: &'a Mongo,
    pub(crate) bounds: Bounds,
}

/// The documents of a step, as they were read.
struct Documents {
    now: ServerTime,
    /// In the order of the names: `None` for an absent one.
    found: Vec<Option<Found>>,
    /// When one of them was changed last.
    moment: ServerTime,
    records: Vec<Record>,
    /// Indexes of those that can't be read.
    skipped: Vec<usize>,
}

impl Documents {
    /// Returns when they are changed next, in microseconds.
    fn next(&self) -> i64 {
        micros(self.now).max(micros(self.moment).saturating_add(1))
    }
}

impl<'a> Call<'a> {
    pub(crate) fn new(mongo: &'a Mongo, timeout: Duration) -> Self {
        Self { mongo, bounds: Bounds::new(timeout) }
    }

    /// Waits for the right to make a step.
    pub(crate) async fn permit(&self) -> Result<Option<SemaphorePermit<'a>>, StoreError> {
        let permit = async { Ok(self.mongo.server.permit().await) };
        self.bounds.within(During::Work, permit).await.map_err(Fault::error)
    }

    /// Prepares for another attempt after `fault`. Fails if there is no time, or if another attempt
    /// would not help.
    pub(crate) async fn pause(&self, pause: Duration, fault: Fault) -> Result<(), StoreError> {
        let Fault::Again(said) = fault else { return Err(fault.error()) };
        if pause >= self.bounds.left() {
            let within = self.bounds.timeout;
            let text = format_args!("not done within {within:?}, nothing was changed: {said}");
            return Err(self.mongo.rows.error(StoreErrorKind::NotReady, text));
        }
        tokio::time::sleep(pause).await;
        Ok(())
    }

    /// Makes attempts until one succeeds or no other would.
    pub(crate) async fn retrying<T, F>(&self, mut attempt: impl FnMut() -> F) -> Result<T, StoreError>
    where
        F: Future<Output = Result<T, Fault>>,
    {
        let mut backoff = Backoff::default();
        loop {
            match attempt().await {
                Ok(done) => return Ok(done),
                Err(fault) => self.pause(backoff.next_pause(), fault).await?,
            }
        }
    }

    /// Asks for the primary's time.
    pub(crate) async fn time(&self) -> Result<ServerTime, Fault> {
        let (sent, now) = self.bounds.time(&self.mongo.server).await?;
        self.mongo.rows.observe(now, sent);
        Ok(now)
    }

    /// Returns the documents of an answer.
    pub(crate) async fn list(&self, command: Document) -> Result<Vec<Document>, Fault> {
        let (_, answer) = self.bounds.read(&self.mongo.server, command).await?;
        Ok(batch_of(&answer))
    }

    /// Makes every kind of change to no document. A user without the rights, or a server without a
    /// majority, refuses that.
    pub(crate) async fn check(&self) -> Result<(), Fault> {
        self.time().await?;
        self.list(documents::versions(&[])).await?;
        let server = &self.mongo.server;
        self.bounds.write(server, documents::look("")).await?;
        self.bounds.write(server, documents::remove(&[])).await?;
        Ok(())
    }

    /// Makes a step on one document.
    pub(crate) async fn one<T>(
        &self,
        change: &Change,
        name: &Name,
        step: Steps<'_, T>,
    ) -> Result<Changed<T>, StoreError> {
        let mut backoff = Backoff::default();
        loop {
            match swap(&mut { *self }, change, name, step).await {
                Ok(Tried::Made(changed)) => return Ok(changed),
                Ok(Tried::Refused(_)) if change.access == Access::Each => {
                    return Ok(self.skip(change, name, step));
                }
                Err(Fault::Failed(error))
                    if change.access == Access::Each && error.kind() == StoreErrorKind::ForeignData =>
                {
                    return Ok(self.skip(change, name, step));
                }
                Ok(Tried::Refused(error)) => return Err(error),
                Ok(Tried::Overtaken) => {
                    let others = "other processes have changed the record".to_owned();
                    // A few milliseconds at first: there may be only one other.
                    self.pause((backoff.next_pause() / 12).min(LOST), Fault::Again(others)).await?;
                }
                Err(fault) => self.pause(backoff.next_pause(), fault).await?,
            }
        }
    }

    /// Runs a step for which the document can't be had.
    fn skip<T>(&self, change: &Change, name: &Name, step: Steps<'_, T>) -> Changed<T> {
        let (mut records, now) = ([Record::empty(name.class)], time(0));
        let (answer, bell, _) = self.mongo.rows.run(&change.names, now, &mut records, &[0], step);
        Changed { answer, now, heard: bell.ring(change.handle) }
    }

    /// Whether every read shows everything that was committed before, as there are no elections.
    async fn is_current(&self) -> Result<bool, Fault> {
        Ok(!self.bounds.connected(&self.mongo.server).await?.is_set)
    }

    /// Reads the documents of a step, also after an election if `current` is true.
    async fn read(&self, change: &Change, current: bool) -> Result<Documents, Fault> {
        let ids: Vec<String> = change.names.iter().map(id).collect();
        let sent = Clock::Boot.now();
        let mut documents = Vec::with_capacity(ids.len());
        let commands = ids.chunks(TOGETHER).map(documents::find);
        if current && !self.is_current().await? {
            let answers = self.bounds.read_current(&self.mongo.server, commands).await?;
            documents.extend(answers.iter().flat_map(batch_of));
        } else {
            for command in commands {
                documents.extend(self.list(command).await?);
            }
        }
        let indexes: HashMap<&str, usize> = ids.iter().map(String::as_str).zip(0..).collect();
        let mut found: Vec<Option<Found>> = vec![None; ids.len()];
        let (mut now, mut last) = (None, 0_i64);
        let mut skipped = Vec::new();
        for document in &documents {
            let index = document.get_str("_id").ok().and_then(|id| indexes.get(id).copied());
            let (Some(index), read) = (index, Read::of(document)) else { continue };
            let Ok(read) = read else {
                skipped.push(index);
                continue;
            };
            now = now.max(Some(read.now));
            last = last.max(read.changed_at);
            if let Some(place) = found.get_mut(index) {
                *place = Some(read.found);
            }
        }
        let now = match now {
            Some(now) => {
                self.mongo.rows.observe(now, sent);
                now
            }
            None => self.time().await?,
        };
        let mut records = Vec::with_capacity(ids.len());
        for (index, (name, found)) in change.names.iter().zip(&found).enumerate() {
            let record = match skipped.contains(&index) {
                true => Err(self.foreign(name)),
                false => self.mongo.rows.record(name, found.as_ref().map(|found| &found.row)),
            };
            records.push(match record {
                Err(_) if change.access == Access::Each => {
                    skipped.push(index);
                    Record::empty(name.class)
                }
                record => record?,
            });
        }
        Ok(Documents { now, found, moment: time(last), records, skipped })
    }

    fn foreign(&self, name: &Name) -> StoreError {
        let text =
            format_args!("{name:?} in {COLLECTION} was written by another program; delete the document");
        self.mongo.rows.error(StoreErrorKind::ForeignData, text)
    }

    /// Makes a step that only looks.
    pub(crate) async fn look_at<T>(
        &self,
        change: &Change,
        step: Steps<'_, T>,
    ) -> Result<Changed<T>, StoreError> {
        let Documents { now, mut records, .. } = self.retrying(|| self.read(change, true)).await?;
        let (answer, bell, _) = self.mongo.rows.run(&change.names, now, &mut records, &[], step);
        Ok(Changed { answer, now, heard: bell.ring(change.handle) })
    }

    /// Makes a step on several documents in a transaction.
    pub(crate) async fn several<T>(
        &self,
        change: &Change,
        step: Steps<'_, T>,
    ) -> Result<Changed<T>, StoreError> {
        let connected = self.bounds.connected(&self.mongo.server).await;
        if !connected.map_err(Fault::error)?.is_set {
            let text = "several keys at once need a transaction, which only a replica set has; start the server with \
                        `--replSet`, also if it is the only one, or lock the keys one by one";
            return Err(self.mongo.rows.error(StoreErrorKind::Unsupported, text));
        }
        let mut backoff = Backoff::default();
        loop {
            match self.transact(change, step).await {
                Ok(changed) => return Ok(changed),
                Err(fault) => self.pause(backoff.next_pause().min(LOST), fault).await?,
            }
        }
    }

    async fn transact<T>(&self, change: &Change, step: Steps<'_, T>) -> Result<Changed<T>, Fault> {
        let settles = change.access == Access::Settle;
        let mut read = self.read(change, false).await?;
        let mut is_current = false;
        let (writes, answer, bell) = loop {
            let mut records = read.records.clone();
            let (answer, bell, events) =
                self.mongo.rows.run(&change.names, read.now, &mut records, &[], step);
            let writes = self.writes(change, &read, &records, &events, &[]);
            let writes = writes.map_err(|(_, error)| error)?;
            if !is_current && writes.len() < change.names.len() {
                // No write proves that the others were so.
                read = self.read(change, true).await?;
                is_current = true;
                continue;
            }
            if writes.is_empty() {
                let moment = if settles { read.now } else { read.moment };
                return Ok(Changed { answer, now: moment, heard: bell.ring(change.handle) });
            }
            break (writes, answer, bell);
        };
        let at = read.next();
        let commands = writes.chunks(TOGETHER);
        let latest = change.latest.map(micros);
        let commands = commands.map(|writes| (documents::write(writes, settles, at, latest), writes.len()));
        match self.commit(commands).await {
            Ok(()) => {
                self.see(&writes);
                let now = if settles { read.now } else { time(at) };
                Ok(Changed { answer, now, heard: bell.ring(change.handle) })
            }
            Err(fault) => {
                bell.doubt(change.handle);
                Err(fault)
            }
        }
    }

    /// Runs commands in a transaction. Each has to write this many documents.
    async fn commit(&self, commands: impl Iterator<Item = (Document, usize)>) -> Result<(), Fault> {
        let mut transaction = self.bounds.begin(&self.mongo.server).await?;
        for (command, count) in commands {
            let answer = self.bounds.run_in(&mut transaction, command).await?;
            if count_of(&answer) != Some(count) {
                let undo = async { transaction.abort().await.map_err(failed) };
                self.bounds.within(During::Work, undo).await?;
                let text = "other processes have changed a record, or it is too late";
                return Err(Fault::Again(text.to_owned()));
            }
        }
        let commit = async { transaction.commit().await.map_err(|error| fault_of_commit(&error)) };
        self.bounds.within(During::Commit, commit).await
    }

    /// Returns what a step writes, or the first record that is too long.
    fn writes<'b>(
        &'b self,
        change: &'b Change,
        read: &'b Documents,
        records: &[Record],
        events: &[Event],
        skipped: &[usize],
    ) -> Result<Vec<Write<'b>>, (usize, StoreError)> {
        let mut writes = Vec::new();
        let settles = change.access == Access::Settle;
        let all = change.names.iter().zip(&read.found).zip(records).zip(&read.records).enumerate();
        for (index, (((name, found), record), before)) in all {
            if skipped.contains(&index) || (record == before && !settles) {
                continue;
            }
            let before = found.as_ref().map(|found| &found.row);
            let mut row = self.mongo.rows.row(name, before, record).map_err(|error| (index, error))?;
            if settles {
                row.kept_until = row.kept_until.max(micros(read.now + MARK));
            }
            let mine = |event: &&Event| event.index == index;
            let events: Vec<Event> = events.iter().filter(mine).cloned().collect();
            writes.push(Write {
                version: found.as_ref().map(|found| found.version.as_str()),
                after: Found { version: new_version(), row },
                told: Told { name, events: events.into(), here: Some(&self.mongo.here) },
            });
        }
        Ok(writes)
    }

    fn see(&self, writes: &[Write<'_>]) {
        for Write { after, told, .. } in writes {
            self.mongo.rows.see(told.name, Some(after.clone()));
        }
    }
}

/// Makes a step on several documents, on each by itself.
pub(crate) async fn batch<T>(
    call: &Call<'_>,
    change: &Change,
    step: Steps<'_, T>,
) -> Result<Changed<T>, StoreError> {
    let mut read = call.retrying(|| call.read(change, false)).await?;
    let rows = &call.mongo.rows;
    let mut skipped = read.skipped.clone();
    let mut is_current = call.retrying(|| call.is_current()).await?;
    loop {
        let at = read.next();
        let mut records = read.records.clone();
        let (answer, bell, events) = rows.run(&change.names, read.now, &mut records, &skipped, step);
        let writes = match call.writes(change, &read, &records, &events, &skipped) {
            Ok(writes) => writes,
            // One record that has grown too long costs no other.
            Err((index, _)) => {
                skipped.push(index);
                continue;
            }
        };
        if !is_current && writes.len() + skipped.len() < change.names.len() {
            // No write proves that the others were so.
            read = call.retrying(|| call.read(change, true)).await?;
            (skipped, is_current) = (read.skipped.clone(), true);
            continue;
        }
        let changed = |answer, bell: Bell| Changed { answer, now: time(at), heard: bell.ring(change.handle) };
        if writes.is_empty() {
            return Ok(changed(answer, bell));
        }
        let missed = match call.write_each(&writes, at).await {
            Ok(missed) => missed,
            Err(fault) => {
                bell.doubt(change.handle);
                return Err(fault.error());
            }
        };
        if missed.is_empty() {
            call.see(&writes);
            return Ok(changed(answer, bell));
        }
        let missed: HashSet<&Name> = missed.iter().map(|write| write.told.name).collect();
        let indexes = change.names.iter().enumerate().filter(|(_, name)| missed.contains(name));
        skipped.extend(indexes.map(|(index, _)| index));
        let mut records = read.records.clone();
        let (answer, bell, _) = rows.run(&change.names, read.now, &mut records, &skipped, step);
        return Ok(changed(answer, bell));
    }
}

impl Call<'_> {
    /// Writes each of these documents by itself. Returns those that are not known to be written:
    /// others have changed them meanwhile, or have locked them.
    async fn write_each<'w>(&self, writes: &'w [Write<'w>], at: i64) -> Result<Vec<&'w Write<'w>>, Fault> {
        let (server, mut is_done, mut unanswered) = (&self.mongo.server, true, None);
        for some in writes.chunks(TOGETHER) {
            // It waits for a document that a transaction of others has locked.
            let bounds = self.bounds.part(self.bounds.timeout / 4);
            match bounds.write(server, documents::write(some, false, at, None)).await {
                Ok((_, answer)) => is_done &= count_of(&answer) == Some(some.len()),
                // Some may have been overtaken by an insert.
                Err(Fault::Again(_)) => is_done = false,
                Err(Fault::Failed(error)) if error.outcome_unknown() => unanswered = Some(error),
                Err(fault) => return Err(fault),
            }
        }
        if is_done && unanswered.is_none() {
            return Ok(Vec::new());
        }
        let missed = self.missed(writes.iter().collect()).await;
        let mut missed = match (missed, &unanswered) {
            (Err(_), Some(error)) => return Err(error.clone().into()),
            (missed, _) => missed?,
        };
        if let Some(error) = unanswered {
            let count = u32::try_from(missed.len()).unwrap_or(u32::MAX);
            let limit = self.bounds.left() / (2 + 2 * count / ABREAST);
            for some in missed.chunks(ABREAST as usize) {
                let write = async |write| {
                    let command = documents::write(std::slice::from_ref(write), false, at, None);
                    // Whether it is done is asked for afterwards.
                    let _ = self.bounds.part(limit).write(server, command).await;
                };
                join_all(some.iter().map(|each| write(*each))).await;
            }
            missed = self.missed(missed).await.map_err(|_| error.clone())?;
            if missed.len() == writes.len() {
                return Err(error.into());
            }
        }
        Ok(missed)
    }

    /// Returns those of these documents that are not as they were written.
    async fn missed<'w>(&self, mut writes: Vec<&'w Write<'w>>) -> Result<Vec<&'w Write<'w>>, Fault> {
        let ids: Vec<String> = writes.iter().map(|write| id(write.told.name)).collect();
        let documents = self.retrying(|| self.list(documents::versions(&ids))).await?;
        let versions: HashSet<&str> =
            documents.iter().filter_map(|document| document.get_str("version").ok()).collect();
        writes.retain(|write| !versions.contains(write.after.version.as_str()));
        Ok(writes)
    }
}

/// Returns the number of documents that an answer to `update` says.
pub(crate) fn count_of(answer: &Document) -> Option<usize> {
    answer.get_i32("n").ok().and_then(|n| usize::try_from(n).ok())
}

impl Swaps for Call<'_> {
    type Fault = Fault;

    // There is no other way: after a pause it begins again.
    const CONFLICTS: u32 = 2;

    fn rows(&self) -> &Rows {
        &self.mongo.rows
    }

    // A swap that fails returns the document.
    fn shared(&self) -> Shared {
        Shared::Swap
    }

    async fn look(&mut self, name: &Name) -> Result<Was, Fault> {
        let (sent, answer) = self.bounds.write(&self.mongo.server, documents::look(&id(name))).await?;
        self.was(name, &answer, sent).await
    }

    async fn write_if(&mut self, swap: Swap<'_>) -> Result<Swapped, Fault> {
        let command = documents::swap(&swap, Some(&self.mongo.here));
        let (sent, answer) = self.bounds.write(&self.mongo.server, command).await?;
        if let Ok(document) = answer.get_document("value")
            && document.get_str("version").is_ok_and(|version| version == swap.after.version)
        {
            let read = Read::of(document).map_err(|_| self.foreign(swap.name))?;
            return Ok(Swapped::Done { now: read.now, moment: time(read.changed_at), sent });
        }
        self.was(swap.name, &answer, sent).await.map(Swapped::Conflict)
    }

    async fn done(&mut self, _: &Name, _: &[Event], _: ServerTime) {}
}

impl Call<'_> {
    /// Returns what an answer says of a document.
    async fn was(&self, name: &Name, answer: &Document, sent: Tick) -> Result<Was, Fault> {
        let Ok(document) = answer.get_document("value") else {
            let (sent, now) = self.bounds.time(&self.mongo.server).await?;
            // An absent one has no order.
            return Ok(Was { found: None, now, moment: time(0), sent, is_exact: true });
        };
        let Read { found, now, changed_at } = Read::of(document).map_err(|_| self.foreign(name))?;
        Ok(Was { found: Some(found), now, moment: time(changed_at), sent, is_exact: true })
    }
}
