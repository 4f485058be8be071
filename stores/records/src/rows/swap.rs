//! [`swap`]: a step on one row in one round trip, by compare and swap.
//!
//! The step is run first, on what is known of the row: the last version that this process has seen,
//! or nothing at all. The database writes only if that was right. It says so in terms of its clock,
//! too: within which time the step has the same outcome.

use std::time::Duration;

use lock_core::internal::clock::{Clock, Tick};
use lock_core::store::{ServerTime, StoreError, StoreErrorKind};

use super::found::{Found, micros, new_version};
use super::known::Seen;
use super::{MARK, Rows, Steps};
use crate::listeners::Event;
use crate::record::{Name, Record};
use crate::store::{Access, Change, Changed};
use crate::text::Row;

/// Maximum time by which the database's clock may be behind our upper bound of it. Leases count
/// from the bound, and are longer by that much.
pub const AHEAD: Duration = Duration::from_millis(100);

/// Maximum time by which it may be ahead, because the message takes time to arrive.
const BEHIND: Duration = Duration::from_millis(250);

/// The text of a record about which nothing is known.
const EMPTY: &str = "{}";

/// How a step on a shared row begins, which others have most likely changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shared {
    /// With a swap, as on other rows.
    Swap,
    /// With a look.
    Look,
    /// It is not swapped. If the step would change nothing, the row is read.
    Leave,
}

/// A call on a database that can compare a row and swap it.
pub trait Swaps: Sync {
    /// Why the database did not do something.
    type Fault: From<StoreError> + Send;

    /// How a step on a shared row begins.
    fn shared(&self) -> Shared;

    /// Number of times that a step on a shared row may be overtaken, before it is tried in another
    /// way. On others, of which only two or three processes want to be first, half as many are
    /// enough.
    const CONFLICTS: u32;

    /// Returns what is known of the database.
    fn rows(&self) -> &Rows;

    /// Reads the row.
    fn look(&mut self, name: &Name) -> impl Future<Output = Result<Was, Self::Fault>> + Send;

    /// Writes the row, if it is what the step was made from.
    fn write_if(&mut self, swap: Swap<'_>) -> impl Future<Output = Result<Swapped, Self::Fault>> + Send;

    /// Says what a swap has done, now that it is done.
    fn done(&mut self, name: &Name, events: &[Event], now: ServerTime) -> impl Future<Output = ()> + Send;
}

/// A row to write, and the conditions.
#[derive(Debug)]
pub struct Swap<'a> {
    /// The row's name.
    pub name: &'a Name,
    /// The row to write. Token and [`kept_until`](Row::kept_until) never go down.
    pub after: &'a Found,
    /// The version that the row has; `None` for one that is absent, or whose content is over.
    pub version: Option<&'a str>,
    /// A row without a version has no larger token than this, in microseconds of the clock.
    pub largest: i64,
    /// The time within which the row is written, in microseconds of the database's clock.
    pub within: (i64, i64),
    /// Whether the database is known to have a row there.
    pub is_there: bool,
    /// When the step was made.
    pub at: ServerTime,
    /// The events of the step.
    pub events: &'a [Event],
    /// Whether the step withdraws.
    pub settles: bool,
}

/// The outcome of a write.
#[derive(Debug)]
pub enum Swapped {
    /// It has written the row at `now`. Steps on the row are ordered by `moment`.
    Done {
        /// The time.
        now: ServerTime,
        /// The order.
        moment: ServerTime,
        /// When the message was sent.
        sent: Tick,
    },
    /// The row is another one.
    Conflict(Was),
}

/// A row as the database has it.
#[derive(Debug)]
pub struct Was {
    /// The row; `None` if it is absent.
    pub found: Option<Found>,
    /// The time at which it was so.
    pub now: ServerTime,
    /// Not later than any change of the row that was made afterwards.
    pub moment: ServerTime,
    /// When the message was sent.
    pub sent: Tick,
    /// Whether it was so at that time, and not only shortly before.
    pub is_exact: bool,
}

/// The outcome of a swap.
#[derive(Debug)]
pub enum Tried<T> {
    /// The step is made.
    Made(Changed<T>),
    /// Others have changed the row meanwhile.
    Overtaken,
    /// The row is unreadable, or would become too long.
    Refused(StoreError),
}

/// The row that a step starts from.
struct Base {
    /// The row; `None` for one that is absent or over.
    version: Option<String>,
    row: Row,
    /// When the step is made.
    at: ServerTime,
    moment: ServerTime,
    /// When that time was estimated; `None` if the database has said it.
    estimated: Option<Tick>,
    /// Whether the database said that the row was so at that time.
    is_seen: bool,
    /// Whether a row is there.
    is_there: bool,
}

impl Base {
    fn of(found: Option<Found>, at: ServerTime, is_seen: bool) -> Self {
        let is_there = found.is_some();
        let (version, row) = match found {
            // Nothing of it counts any more but the counter.
            Some(Found { row, .. }) if !is_seen && row.until <= micros(at) => {
                (None, Row { until: 0, text: EMPTY.to_owned(), ..row })
            }
            Some(Found { version, row }) => (Some(version), row),
            None => (None, Row { text: EMPTY.to_owned(), ..Row::default() }),
        };
        Self { version, row, at, moment: at, estimated: None, is_seen, is_there }
    }

    /// Returns what the database has said.
    fn seen(rows: &Rows, name: &Name, was: Was) -> Self {
        rows.observe(was.now, was.sent);
        rows.see(name, was.found.clone());
        Self { moment: was.moment, ..Self::of(was.found, was.now, was.is_exact) }
    }
}

/// Makes a step on one row.
///
/// # Errors
///
/// Those of the database.
pub async fn swap<S: Swaps, T>(
    call: &mut S,
    change: &Change,
    name: &Name,
    step: Steps<'_, T>,
) -> Result<Tried<T>, S::Fault> {
    let settles = change.access == Access::Settle;
    let known = call.rows().known.get(name);
    let now = Clock::Boot.now();
    let mut base = match (call.rows().fresh_time(), known) {
        (None, _) | (_, Some(Seen::Long)) => look(call, name).await?,
        (Some(estimate), Some(Seen::Row(found))) => {
            Base { estimated: Some(now), ..Base::of(Some(found), estimate, false) }
        }
        (Some(estimate), None) => Base { estimated: Some(now), ..Base::of(None, estimate, false) },
    };
    let mut conflicts = 0;
    loop {
        let before = match call.rows().record(name, Some(&base.row)) {
            Ok(before) => before,
            Err(error) if base.is_seen => return Ok(Tried::Refused(error)),
            Err(_) => {
                base = look(call, name).await?;
                continue;
            }
        };
        let shared = if before.is_shared() { call.shared() } else { Shared::Swap };
        if shared == Shared::Look && !base.is_seen && conflicts == 0 {
            base = look(call, name).await?;
            continue;
        }
        let mut records = [before.clone()];
        let (answer, bell, events) = call.rows().run(&change.names, base.at, &mut records, &[], step);
        let [record] = &records;
        if *record == before && !settles {
            if base.is_seen {
                return Ok(Tried::Made(Changed {
                    answer,
                    now: base.moment,
                    heard: bell.ring(change.handle),
                }));
            }
            base = look(call, name).await?;
            continue;
        }
        if conflicts > S::CONFLICTS || shared == Shared::Leave {
            return Ok(Tried::Overtaken);
        }
        let mut row = match call.rows().row(name, Some(&base.row), record) {
            Ok(row) => row,
            Err(error) if base.is_seen => return Ok(Tried::Refused(error)),
            Err(_) => {
                base = look(call, name).await?;
                continue;
            }
        };
        if settles {
            row.kept_until = row.kept_until.max(micros(base.at + MARK));
        }
        let after = Found { version: new_version(), row };
        match write_if(call, change, name, &base, &before, &after, &events).await {
            Ok(Ok(now)) => {
                call.rows().known.put(name, after);
                return Ok(Tried::Made(Changed { answer, now, heard: bell.ring(change.handle) }));
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

/// Reads the row.
async fn look<S: Swaps>(call: &mut S, name: &Name) -> Result<Base, S::Fault> {
    let was = call.look(name).await?;
    Ok(Base::seen(call.rows(), name, was))
}

/// Writes the row if it is what the step was made from; returns when, or what it is.
async fn write_if<S: Swaps>(
    call: &mut S,
    change: &Change,
    name: &Name,
    base: &Base,
    before: &Record,
    after: &Found,
    events: &[Event],
) -> Result<Result<ServerTime, Base>, S::Fault> {
    // What has ended still has, and what is there has not ended.
    let (from, to) = before.same_around(base.at);
    let slow = micros(base.at).saturating_sub(i64::try_from(AHEAD.as_micros()).unwrap_or(0));
    let from = from.map_or(slow, |from| slow.max(micros(from)));
    let late = micros(base.at + BEHIND);
    let to = to.map_or(late, |to| late.min(micros(to).saturating_sub(1)));
    let to = change.latest.map_or(to, |latest| to.min(micros(latest)));
    let swap = Swap {
        name,
        after,
        version: base.version.as_deref(),
        // New tokens are larger than this.
        largest: base.row.token.max(micros(base.at)),
        within: (from, to),
        is_there: base.is_there,
        at: base.at,
        events,
        settles: change.access == Access::Settle,
    };
    match call.write_if(swap).await? {
        Swapped::Done { now, moment, sent } => {
            let answered = Clock::Boot.now();
            call.rows().observe(now, sent);
            // An upper bound of the time that was none, since the clock was set, or a row that was
            // waited for: it has to be undone.
            let was_early = base.estimated.is_some_and(|estimated| now > base.at + answered.since(estimated));
            if was_early || !(from..=to).contains(&micros(now)) {
                let text = "the database's clock was set, or the row was written late";
                return Err(call.rows().error(StoreErrorKind::Unanswered, text).into());
            }
            call.done(name, events, now).await;
            Ok(Ok(moment))
        }
        Swapped::Conflict(was) => Ok(Err(Base::seen(call.rows(), name, was))),
    }
}
