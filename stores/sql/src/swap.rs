//! Compare and swap: a step on one row in one round trip.
//!
//! The step is run first, on what is known of the row: the last version that this process has seen,
//! or nothing at all. The statement writes only if that was right. It says so in terms of the
//! database's clock, too: within which time the step has the same outcome.

use std::collections::HashMap;
use std::time::Duration;

use lock_core::internal::clock::{Clock, Tick};
use lock_core::internal::sync::{Mutex, lock};
use lock_core::store::{ServerTime, StoreErrorKind};
use lock_store_records::{Change, Changed, Event, Name, Record, Row as RecordRow};
use tokio::time::timeout;

use crate::call::{Call, Steps};
use crate::links::Link;
use crate::notices::Whom;
use crate::plumbing::{Arg, During, Fault};
use crate::row::{Found, micros, new_version, text_of, time};

/// Maximum time by which the database's clock may be behind our upper bound of it. Leases count
/// from the bound, and are longer by that much.
pub(crate) const AHEAD: Duration = Duration::from_millis(100);

/// Maximum time by which it may be ahead, because the statement takes time to arrive.
const BEHIND: Duration = Duration::from_millis(250);

/// Maximum length of a row's text that is remembered.
const SHORT: usize = 4096;

/// Number of times that a step on a shared row may be overtaken, before it locks the row. On
/// others, of which only two or three processes want to be first, once is enough.
const CONFLICTS: u32 = 1;

/// Maximum time for the notices of a step that is done.
const NOTICE: Duration = Duration::from_millis(250);

/// Number of rows that are remembered, at least.
const KNOWN: usize = 4096;

/// The rows that this process has seen last. They may be out of date: the statement compares.
#[derive(Debug, Default)]
pub(crate) struct Known(Mutex<[HashMap<Name, Seen>; 2]>);

#[derive(Clone, Debug)]
enum Seen {
    Row(Found),
    /// Too long to be remembered: it is looked at before each step.
    Long,
}

impl Known {
    pub(crate) fn put(&self, name: &Name, found: Found) {
        let seen = if found.row.text.len() > SHORT { Seen::Long } else { Seen::Row(found) };
        let mut known = lock(&self.0);
        let [young, old] = &mut *known;
        old.remove(name);
        young.insert(name.clone(), seen);
        if young.len() >= KNOWN {
            *old = std::mem::take(young);
        }
    }

    fn get(&self, name: &Name) -> Option<Seen> {
        let known = lock(&self.0);
        known.iter().find_map(|found| found.get(name)).cloned()
    }

    fn forget(&self, name: &Name) {
        lock(&self.0).iter_mut().for_each(|known| drop(known.remove(name)));
    }
}

/// The row that a step starts from.
struct Base {
    /// The row; `None` for one that is absent or over.
    version: Option<String>,
    row: RecordRow,
    /// When the step is made.
    at: ServerTime,
    /// When that time was estimated; `None` if the database has said it.
    estimated: Option<Tick>,
    /// Whether the database said that the row was so at that time.
    is_seen: bool,
    /// Whether a row is there.
    is_there: bool,
}

impl Base {
    fn of(found: Option<Found>, at: ServerTime, is_seen: bool) -> Self {
        let (estimated, is_there) = (None, found.is_some());
        match found {
            // Nothing of it counts any more but the counter.
            Some(Found { row, .. }) if !is_seen && row.until <= micros(at) => {
                let row = RecordRow { until: 0, text: EMPTY.to_owned(), ..row };
                Self { version: None, row, at, estimated, is_seen, is_there }
            }
            Some(Found { version, row }) => {
                Self { version: Some(version), row, at, estimated, is_seen, is_there }
            }
            None => {
                let row = RecordRow { text: EMPTY.to_owned(), ..RecordRow::default() };
                Self { version: None, row, at, estimated, is_seen, is_there }
            }
        }
    }
}

/// The text of a record about which nothing is known.
const EMPTY: &str = "{}";

impl Call<'_> {
    /// Makes a step on one row; `None` if others have changed it meanwhile, or if it is
    /// unreadable.
    pub(crate) async fn swap<T>(
        &self,
        change: &Change,
        name: &Name,
        step: Steps<'_, T>,
    ) -> Result<Option<Changed<T>>, Fault> {
        let mut link = self.link().await?;
        let swapped = self.swap_on(&mut link, change, name, step).await;
        link.give_back();
        swapped
    }

    async fn swap_on<T>(
        &self,
        link: &mut Link,
        change: &Change,
        name: &Name,
        step: Steps<'_, T>,
    ) -> Result<Option<Changed<T>>, Fault> {
        let known = self.sql.known.get(name);
        let now = Clock::Boot.now();
        let mut base = match (self.sql.fresh_time(), known) {
            (None, _) | (_, Some(Seen::Long)) => self.look(link, name).await?,
            (Some(estimate), Some(Seen::Row(found))) => {
                Base { estimated: Some(now), ..Base::of(Some(found), estimate, false) }
            }
            (Some(estimate), None) => Base { estimated: Some(now), ..Base::of(None, estimate, false) },
        };
        let mut conflicts = 0;
        loop {
            let Ok(before) = self.record(name, Some(&base.row)) else { return Ok(None) };
            // Others have most likely changed it since.
            if !base.is_seen && conflicts == 0 && before.is_shared() {
                base = self.look(link, name).await?;
                continue;
            }
            let mut records = [before.clone()];
            let (answer, bell, events) = self.run(&change.names, base.at, &mut records, &[], step);
            let [record] = &records;
            if *record == before {
                if base.is_seen {
                    return Ok(Some(Changed { answer, now: base.at, heard: bell.ring(change.handle) }));
                }
                base = self.look(link, name).await?;
                continue;
            }
            if conflicts > CONFLICTS {
                return Ok(None);
            }
            let Ok(row) = self.row(name, Some(&base.row), record) else { return Ok(None) };
            let after = Found { version: new_version(), row };
            match self.write_if(link, change, &base, &before, &after, &events).await {
                Ok(Ok(now)) => {
                    self.sql.known.put(name, after);
                    return Ok(Some(Changed { answer, now, heard: bell.ring(change.handle) }));
                }
                Ok(Err(is)) => base = is,
                Err(fault) => {
                    bell.doubt(change.handle);
                    return Err(fault);
                }
            }
            conflicts += 1 + u32::from(!before.is_shared());
        }
    }

    /// Remembers the row, so that the next step knows whether it has to write.
    fn see(&self, name: &Name, found: Option<&Found>) {
        match found {
            Some(found) => self.sql.known.put(name, found.clone()),
            None => self.sql.known.forget(name),
        }
    }

    /// Reads the row.
    async fn look(&self, link: &mut Link, name: &Name) -> Result<Base, Fault> {
        let args = [Arg::Text(text_of(name.class)), Arg::Names(&[&*name.text])];
        let sent = Clock::Boot.now();
        let rows = self.bounded(During::Work, link.rows(&self.sql.statements.look, &args)).await?;
        let read = || {
            let Some(row) = rows.first() else { return Ok((time(0), None)) };
            Ok((time(row.int(0)?), Found::read(row, 2)?))
        };
        let (now, found) = read().map_err(|error| self.unreadable(&error))?;
        self.sql.observe(now, sent);
        self.see(name, found.as_ref());
        Ok(Base::of(found, now, true))
    }

    /// Writes the row if it is what the step was made from; returns when, or what it is.
    async fn write_if(
        &self,
        link: &mut Link,
        change: &Change,
        base: &Base,
        before: &Record,
        after: &Found,
        events: &[Event],
    ) -> Result<Result<ServerTime, Base>, Fault> {
        let [name] = &*change.names else { unreachable!("a swap changes one row") };
        // What has ended still has, and what is there has not ended.
        let (from, to) = before.same_around(base.at);
        let slow = micros(base.at).saturating_sub(i64::try_from(AHEAD.as_micros()).unwrap_or(0));
        let from = from.map_or(slow, |from| slow.max(micros(from)));
        let late = micros(base.at + BEHIND);
        let to = to.map_or(late, |to| late.min(micros(to).saturating_sub(1)));
        let to = change.latest.map_or(to, |latest| to.min(micros(latest)));
        // New tokens are larger than this.
        let largest = base.row.token.max(micros(base.at));
        let last = base.version.as_deref().map_or(Arg::Int(largest), Arg::Text);
        let statements = &self.sql.statements;
        let (update, swap) = match base.version {
            Some(_) => (&statements.update_version, &statements.swap_version),
            None => (&statements.update_over, &statements.swap_over),
        };
        let Found { version, row } = after;
        // A lease that the step grants counts from then, and not from when it is written.
        let direct = self.sql.notices.direct(name, events, micros(base.at));
        let args = [
            Arg::Text(text_of(name.class)),
            Arg::Text(&name.text),
            Arg::Text(version),
            Arg::Int(row.token),
            Arg::Int(row.until),
            Arg::Int(row.kept_until),
            Arg::Text(&row.text),
            Arg::Int(from),
            Arg::Int(to),
            last,
            Arg::Text(direct.as_deref().unwrap_or("[]")),
        ];
        let mut sent = Clock::Boot.now();
        let mut rows = Vec::new();
        if let [args @ .., _] = &args
            && base.is_there
            && !update.is_empty()
            && direct.is_none()
        {
            rows = self.bounded(During::Commit, link.rows(update, args)).await?;
        }
        if rows.is_empty() {
            sent = Clock::Boot.now();
            rows = self.bounded(During::Commit, link.rows(swap, &args)).await?;
        }
        let answered = Clock::Boot.now();
        let read = || {
            let Some(row) = rows.first() else { return Ok((false, time(0), None, None)) };
            let (is_done, now) = (row.int(0)? == 1, time(row.int(1)?));
            Ok(match is_done {
                true => (true, now, None, row.maybe_text(2)?),
                false => (false, now, Found::read(row, 2)?, None),
            })
        };
        let (is_done, now, found, listeners) = read().map_err(|error| self.unreadable(&error))?;
        self.sql.observe(now, sent);
        if is_done {
            // An upper bound of the time that was none, since the clock was set, or a row that was
            // waited for: it has to be undone.
            let was_early = base.estimated.is_some_and(|estimated| now > base.at + answered.since(estimated));
            if was_early || !(from..=to).contains(&micros(now)) {
                let text = "the database's clock was set, or the row was written late";
                return Err(self.error(StoreErrorKind::Unanswered, text).into());
            }
            let notices =
                self.sql.notices.statements(&change.names, &[listeners], events, Whom::Public, micros(now));
            if !notices.is_empty() {
                // The step is done. If this fails, others look by themselves.
                let _ = timeout(NOTICE, link.run(&notices)).await;
            }
            return Ok(Ok(now));
        }
        self.see(name, found.as_ref());
        // Beside an insert, the row was read before the clock, and before others were waited for.
        Ok(Err(Base::of(found, now, base.version.is_some())))
    }
}
