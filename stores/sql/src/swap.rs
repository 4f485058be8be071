//! Compare and swap: a step on one row as one statement.

use std::time::Duration;

use lock_core::internal::clock::Clock;
use lock_core::store::ServerTime;
use lock_store_records::rows::{Found, Rows, Shared, Swap, Swapped, Swaps, Was, micros, text_of, time};
use lock_store_records::{Event, Name};
use tokio::time::timeout;

use crate::call::Call;
use crate::links::Link;
use crate::notices::Whom;
use crate::plumbing::{Arg, During, Fault};
use crate::row::read_row;

/// Maximum time for the notices of a step that is done.
const NOTICE: Duration = Duration::from_millis(250);

/// A call that swaps a row over one connection.
pub(crate) struct Swapping<'a> {
    call: Call<'a>,
    pub(crate) link: Link,
    /// The processes that listen to the row that was written last.
    listeners: Option<String>,
}

impl<'a> Swapping<'a> {
    pub(crate) async fn begin(call: Call<'a>) -> Result<Self, Fault> {
        Ok(Self { link: call.link().await?, call, listeners: None })
    }
}

impl Swaps for Swapping<'_> {
    type Fault = Fault;

    // Then it is locked.
    const CONFLICTS: u32 = 1;

    fn rows(&self) -> &Rows {
        &self.call.sql.rows
    }

    // In MariaDB a swap waits for all that came before. When it fails, the lock waits again.
    fn shared(&self) -> Shared {
        if self.call.sql.statements.swap_version.is_empty() { Shared::Leave } else { Shared::Look }
    }

    async fn look(&mut self, name: &Name) -> Result<Was, Fault> {
        let call = self.call;
        let args = [Arg::Text(text_of(name.class)), Arg::Names(&[&*name.text])];
        let sent = Clock::Boot.now();
        let rows = call.bounded(During::Work, self.link.rows(&call.sql.statements.look, &args)).await?;
        let read = || {
            let Some(row) = rows.first() else { return Ok((time(0), None)) };
            Ok((time(row.int(0)?), read_row(row, 2)?))
        };
        let (now, found) = read().map_err(|error| call.unreadable(&error))?;
        Ok(Was { found, now, moment: now, sent, is_exact: true })
    }

    async fn write_if(&mut self, swap: Swap<'_>) -> Result<Swapped, Fault> {
        let (call, name) = (self.call, swap.name);
        let last = swap.version.map_or(Arg::Int(swap.largest), Arg::Text);
        let statements = &call.sql.statements;
        let (update, write) = match swap.version {
            Some(_) => (&statements.update_version, &statements.swap_version),
            None => (&statements.update_over, &statements.swap_over),
        };
        let Found { version, row } = swap.after;
        // A lease that the step grants counts from then, and not from when it is written.
        let direct = call.sql.notices.direct(name, swap.events, micros(swap.at));
        let args = [
            Arg::Text(text_of(name.class)),
            Arg::Text(&name.text),
            Arg::Text(version),
            Arg::Int(row.token),
            Arg::Int(row.until),
            Arg::Int(row.kept_until),
            Arg::Text(&row.text),
            Arg::Int(swap.within.0),
            Arg::Int(swap.within.1),
            last,
            Arg::Text(direct.as_deref().unwrap_or("[]")),
        ];
        let mut sent = Clock::Boot.now();
        let mut rows = Vec::new();
        if let [args @ .., _] = &args
            && swap.is_there
            && !update.is_empty()
            && direct.is_none()
        {
            rows = call.bounded(During::Commit, self.link.update(update, args)).await?;
            if rows.is_empty() && self.shared() == Shared::Leave {
                return self.look(name).await.map(Swapped::Conflict);
            }
        }
        if rows.is_empty() {
            sent = Clock::Boot.now();
            rows = call.bounded(During::Commit, self.link.rows(write, &args)).await?;
        }
        let read = || {
            let Some(row) = rows.first() else { return Ok((false, time(0), None, None)) };
            let (is_done, now) = (row.int(0)? == 1, time(row.int(1)?));
            Ok(match is_done {
                true => (true, now, None, row.maybe_text(2)?),
                false => (false, now, read_row(row, 2)?, None),
            })
        };
        let (is_done, now, found, listeners) = read().map_err(|error| call.unreadable(&error))?;
        if is_done {
            self.listeners = listeners;
            return Ok(Swapped::Done { now, moment: now, sent });
        }
        // Beside an insert, the row was read before the clock, and before others were waited for.
        Ok(Swapped::Conflict(Was { found, now, moment: now, sent, is_exact: swap.version.is_some() }))
    }

    async fn done(&mut self, name: &Name, events: &[Event], now: ServerTime) {
        let (names, listeners) = (std::slice::from_ref(name), [self.listeners.take()]);
        let notices = self.call.sql.notices.statements(names, &listeners, events, Whom::Public, micros(now));
        if !notices.is_empty() {
            // The step is done. If this fails, others look by themselves.
            let _ = timeout(NOTICE, self.link.run(&notices)).await;
        }
    }
}
