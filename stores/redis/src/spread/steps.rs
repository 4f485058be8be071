//! The steps of a spread stock: each is one script at one server.

use lock_core::FencingToken;
use lock_core::internal::steps::fault_point;
use lock_core::internal::sync::atomic::Ordering;
use lock_core::store::stock::{OperationId, Part};
use lock_core::store::{ServerTime, StoreError, StoreErrorKind};
use redis::Value;

use super::Spread;
use super::record::{Column, Record};
use crate::connection::{At, Ready};
use crate::fault::Fault;
use crate::node::Node;
use crate::reply::{self, int, text};
use crate::script::{self, Script};
use crate::steps::{about_key, millis};
use crate::topology::Topology;

/// Answer of a script: its code, the server's time, and its own values.
struct Said {
    now: ServerTime,
    code: i64,
    values: Vec<Value>,
}

/// Outcome of a put.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Put {
    /// The segment has what was wanted. Nobody looks for units in a segment that is retired.
    Done { epoch: u64, retired: bool },
    /// The segment has too few units.
    Short,
    /// A newer version was here before, of a record made at this time.
    Older { born: u64 },
    /// The segment is retired, so nothing is taken from it.
    Retired,
    /// A newer token was here before.
    Stale,
    /// There is no such segment, or not yet.
    Missing,
}

/// Outcome of a step at a record.
#[derive(Debug)]
pub(super) struct Turned {
    /// Whether this step changed the record.
    pub(super) changed: bool,
    pub(super) before: Option<Record>,
    pub(super) now: Option<Record>,
}

/// A request to a record, as in `scripts/spread_home.lua`.
#[derive(Clone, Debug)]
pub(super) enum Home<'a> {
    Look,
    Tidy,
    Open { kind: Column, quantity: u64, hold: Option<u64>, parts: &'a [Part], older: u64 },
    Plan { record: &'a Record, parts: &'a [Part] },
    Decide(&'a Record),
    Drop(&'a Record),
    Done(&'a Record),
    Settle(&'static str),
}

/// The stock as a whole.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Root {
    pub(super) changed: bool,
    /// Number of active segments.
    pub(super) count: u32,
    /// Number of segments that ever existed.
    pub(super) ever: u32,
    pub(super) epoch: u64,
    pub(super) ready: bool,
    /// Units of the new segments while they are being made.
    pub(super) units: Vec<u64>,
}

/// Content of a segment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Content {
    pub(super) retired: bool,
    pub(super) available: u64,
    pub(super) taken: u64,
    pub(super) held: u64,
    pub(super) sold: u64,
    pub(super) initial: u64,
    pub(super) restocked: u64,
    /// How often units became available.
    pub(super) increases: u64,
    /// Number of transfers and restocks.
    pub(super) moves: u64,
    /// Transfers to other segments: segment, number, units.
    pub(super) sent: Vec<(u32, u64, u64)>,
    /// Transfers from other segments: segment, last number.
    pub(super) received: Vec<(u32, u64)>,
}

fn number(value: &Value) -> Option<u64> {
    int(value).and_then(|number| u64::try_from(number).ok())
}

impl Content {
    fn read(fields: &[Value]) -> Option<Self> {
        let mut content = Self::default();
        for pair in fields.chunks_exact(2) {
            let [field, value] = pair else { return None };
            let (field, value) = (text(field)?, text(value)?);
            let (head, segment) = field.split_at_checked(1)?;
            match (head, segment) {
                ("a", "") => content.available = value.parse().ok()?,
                ("t", "") => content.taken = value.parse().ok()?,
                ("h", "") => content.held = value.parse().ok()?,
                ("s", "") => content.sold = value.parse().ok()?,
                ("i", "") => content.initial = value.parse().ok()?,
                ("r", "") => content.restocked = value.parse().ok()?,
                ("c", "") => content.increases = value.parse().ok()?,
                ("y", "") => content.moves = value.parse().ok()?,
                ("s", "t") => content.retired = value == "D",
                ("o", to) => {
                    let (nth, units) = value.split_once(' ')?;
                    content.sent.push((to.parse().ok()?, nth.parse().ok()?, units.parse().ok()?));
                }
                ("l", from) => content.received.push((from.parse().ok()?, value.parse().ok()?)),
                _ => {}
            }
        }
        Some(content)
    }

    /// Returns the number of the last transfer from a segment.
    pub(super) fn last_from(&self, segment: u32) -> u64 {
        self.received.iter().find(|(from, _)| *from == segment).map_or(0, |(_, last)| *last)
    }
}

impl Node {
    async fn spread_step(
        &self,
        script: &'static Script,
        keys: &[String],
        args: &[String],
        at: At,
    ) -> Result<Said, Fault> {
        let ask = |now: ServerTime| {
            let mut invocation = self.invocation(script, keys.len(), 1 + args.len());
            for key in keys {
                invocation.arg(key);
            }
            let timeout = u64::try_from(at.timeout.as_micros()).unwrap_or(u64::MAX);
            invocation.arg(now.as_micros().saturating_add(timeout));
            for arg in args {
                invocation.arg(arg);
            }
            invocation
        };
        let name = keys.first().map_or("", String::as_str);
        let read = |ready: &Ready, answer: Result<Value, Fault>| {
            let value = answer.map_err(|fault| fault.map(|error| about_key(error, name)))?;
            let read = || {
                let [code, now, values @ ..] = reply::array(&value)? else { return None };
                Some((int(code)?, reply::now(now)?, values.to_vec()))
            };
            let Some((code, now, values)) = read() else { return Err(self.senseless(&value).into()) };
            self.server_clock.observe(now, ready.now);
            match code {
                2 => Ok(Err(now)),
                3 => {
                    let what = "it, or a key that belongs to it, has data of another kind";
                    Err(self.foreign_to("spread stock", name, what).into())
                }
                code => Ok(Ok(Said { now, code, values })),
            }
        };
        self.in_time(at, ask, read).await
    }
}

impl Spread {
    async fn step(
        &self,
        script: &'static Script,
        keys: &[String],
        how: &str,
        args: impl IntoIterator<Item = String>,
    ) -> Result<Said, StoreError> {
        let args: Vec<String> = std::iter::once(how.to_owned()).chain(args).collect();
        let timeout = self.deadline.since(self.now());
        if timeout.is_zero() {
            let what = "the call timed out before it was done; send the same call again";
            return Err(StoreError::new(StoreErrorKind::Unanswered, what));
        }
        fault_point(script.name, how);
        let said = match &self.topology {
            Topology::One { node, .. } => {
                Ok(node.spread_step(script, keys, &args, At::once(timeout)).await?)
            }
            Topology::Cluster(cluster) => {
                let key = keys.first().map_or("", String::as_str);
                let step = |node: std::sync::Arc<Node>, at| {
                    let args = &args;
                    async move { node.spread_step(script, keys, args, at).await }
                };
                cluster.at_key(key, timeout, step).await
            }
        };
        fault_point(script.name, "answered");
        said
    }

    fn senseless(&self, said: &Said) -> StoreError {
        let what =
            format!("unexpected answer of the stock {}: {} {:?}", self.names.stock, said.code, said.values);
        StoreError::new(StoreErrorKind::Unanswered, what)
    }

    pub(super) async fn home(&self, operation: &OperationId, ask: Home<'_>) -> Result<Turned, StoreError> {
        let keys = self.names.record(operation);
        let (grace, retention) = (millis(self.grace).to_string(), millis(self.retention).to_string());
        let at = |record: &Record| [record.born.to_string(), record.version.to_string()];
        let (how, args) = match ask {
            Home::Look => ("look", vec![]),
            Home::Tidy => ("tidy", vec![]),
            Home::Open { kind, quantity, hold, parts, older } => {
                let hold = hold.map_or_else(|| "-1".to_owned(), |hold| hold.to_string());
                let kind = kind.letter().to_owned();
                (
                    "open",
                    vec![
                        kind,
                        quantity.to_string(),
                        hold,
                        grace,
                        Record::parts_text(parts),
                        older.to_string(),
                    ],
                )
            }
            Home::Plan { record, parts } => {
                let [born, version] = at(record);
                ("plan", vec![grace, born, version, Record::parts_text(parts)])
            }
            Home::Decide(record) => {
                let [born, version] = at(record);
                ("decide", vec![grace, retention, born, version])
            }
            Home::Drop(record) => ("drop", at(record).to_vec()),
            Home::Done(record) => {
                let [born, version] = at(record);
                ("done", vec![retention, born, version])
            }
            Home::Settle(how) => (how, vec![grace, retention]),
        };
        let args = std::iter::once(operation.as_str().to_owned()).chain(args);
        let said = self.step(&script::SPREAD_HOME, &keys, how, args).await?;
        self.home_time.store(said.now.as_micros().div_ceil(1000), Ordering::Relaxed);
        let read = || {
            let (1, [changed, before, now]) = (said.code, &said.values[..]) else { return None };
            let record = |value: &Value| match text(value)? {
                "" => Some(None),
                text => Record::read(text).map(Some),
            };
            Some(Turned { changed: int(changed)? == 1, before: record(before)?, now: record(now)? })
        };
        read().ok_or_else(|| self.senseless(&said))
    }

    /// Returns operations at a home that are due to be looked at, and since when (ms).
    pub(super) async fn due(&self, home: u16, most: u32) -> Result<Vec<(u64, OperationId)>, StoreError> {
        let said =
            self.step(&script::SPREAD_HOME, &[self.names.open(home)], "due", [most.to_string()]).await?;
        let each = said.values.chunks_exact(2).map(|pair| match pair {
            // Scores arrive as text.
            [operation, at] => {
                let at = text(at)?.parse::<f64>().ok()?;
                Some((at as u64, OperationId::new(text(operation)?).ok()?))
            }
            _ => None,
        });
        each.collect::<Option<_>>().ok_or_else(|| self.senseless(&said))
    }

    pub(super) async fn put(
        &self,
        operation: &OperationId,
        record: &Record,
        (part, column): (Part, Column),
        token: Option<FencingToken>,
    ) -> Result<Put, StoreError> {
        let names = self.names.part(part.segment);
        let args = [
            operation.as_str().to_owned(),
            record.born.to_string(),
            record.version.to_string(),
            column.letter().to_owned(),
            part.quantity.to_string(),
            token.map_or(0, FencingToken::get).to_string(),
        ];
        let said =
            self.step(&script::SPREAD_PUT, &[names.part, names.puts, names.times], "put", args).await?;
        match (said.code, &said.values[..]) {
            (1, [epoch, retired]) => {
                number(epoch).map(|epoch| Put::Done { epoch, retired: int(retired) == Some(1) })
            }
            (4, []) => Some(Put::Missing),
            (5, [_]) => Some(Put::Short),
            (6, [born]) => number(born).map(|born| Put::Older { born }),
            (7, []) => Some(Put::Retired),
            (8, []) => Some(Put::Stale),
            _ => None,
        }
        .ok_or_else(|| self.senseless(&said))
    }

    /// Runs a step at the stock as a whole. Returns `None` if there is no such stock.
    pub(super) async fn root(
        &self,
        how: &str,
        numbers: impl IntoIterator<Item = u64>,
    ) -> Result<Option<Root>, StoreError> {
        let keys = [self.names.stock.clone()];
        let numbers = numbers.into_iter().map(|number| number.to_string());
        let said = self.step(&script::SPREAD_ROOT, &keys, how, numbers).await?;
        let read = || {
            let [changed, count, ever, epoch, ready, units] = &said.values[..] else { return None };
            let units = text(units)?.split_whitespace().map(|units| units.parse().ok());
            Some(Root {
                changed: int(changed)? == 1,
                count: u32::try_from(int(count)?).ok()?,
                ever: u32::try_from(int(ever)?).ok()?,
                epoch: number(epoch)?,
                ready: int(ready)? == 1,
                units: units.collect::<Option<_>>()?,
            })
        };
        match said.code {
            1 => read().map(Some).ok_or_else(|| self.senseless(&said)),
            4 => Ok(None),
            5 => {
                let what = format!(
                    "the stock {} is kept in one slot and not spread: use Layout::OneSlot for it, or another name",
                    self.names.stock
                );
                Err(StoreError::new(StoreErrorKind::ForeignData, what))
            }
            _ => Err(self.senseless(&said)),
        }
    }

    async fn at_part(
        &self,
        segment: u32,
        how: &str,
        args: impl IntoIterator<Item = String>,
    ) -> Result<Said, StoreError> {
        let names = self.names.part(segment);
        let keys = [names.part, names.puts, names.times];
        let keys = if matches!(how, "over" | "forget") { &keys[..] } else { &keys[..1] };
        self.step(&script::SPREAD_PART, keys, how, args).await
    }

    /// Makes a segment, activates it again, or retires it.
    pub(super) async fn set_part(
        &self,
        segment: u32,
        how: &'static str,
        epoch: u64,
        units: u64,
    ) -> Result<(), StoreError> {
        self.at_part(segment, how, [epoch.to_string(), units.to_string()]).await.map(drop)
    }

    /// Returns a segment's content, or `None` if there is no such segment.
    pub(super) async fn look_at_part(&self, segment: u32) -> Result<Option<Content>, StoreError> {
        let said = self.at_part(segment, "look", []).await?;
        match (said.code, &said.values[..]) {
            (4, []) => Ok(None),
            (1, [fields]) => {
                let content = reply::array(fields).and_then(Content::read);
                content.map(Some).ok_or_else(|| self.senseless(&said))
            }
            _ => Err(self.senseless(&said)),
        }
    }

    /// Sends units to `to`. Returns the number and units of the transfer under way, or `None` if
    /// there is nothing to send.
    pub(super) async fn send(
        &self,
        from: u32,
        to: u32,
        units: u64,
    ) -> Result<Option<(u64, u64)>, StoreError> {
        let said = self.at_part(from, "send", [to.to_string(), units.to_string()]).await?;
        match (said.code, &said.values[..]) {
            (0 | 4, _) => Ok(None),
            (1, [nth, units]) => {
                number(nth).zip(number(units)).map(Some).ok_or_else(|| self.senseless(&said))
            }
            _ => Err(self.senseless(&said)),
        }
    }

    /// Finishes a transfer. May be repeated.
    pub(super) async fn arrive(&self, from: u32, to: u32, nth: u64, units: u64) -> Result<(), StoreError> {
        let args = [from.to_string(), nth.to_string(), units.to_string()];
        let said = self.at_part(to, "receive", args).await?;
        // The target exists, and the transfer must not be cleared before it has arrived there.
        if !matches!(said.code, 0 | 1) {
            return Err(self.senseless(&said));
        }
        self.at_part(from, "clear", [to.to_string(), nth.to_string()]).await.map(drop)
    }

    /// Returns operations that last changed a segment at least `ago` ms ago, with their entries
    /// there.
    pub(super) async fn over(
        &self,
        segment: u32,
        ago: u64,
        most: u32,
    ) -> Result<Vec<(OperationId, String)>, StoreError> {
        let said = self.at_part(segment, "over", [ago.to_string(), most.to_string()]).await?;
        let each = said.values.chunks_exact(2).map(|pair| match pair {
            [operation, entry] => Some((OperationId::new(text(operation)?).ok()?, text(entry)?.to_owned())),
            _ => None,
        });
        each.collect::<Option<_>>().ok_or_else(|| self.senseless(&said))
    }

    pub(super) async fn forget(
        &self,
        segment: u32,
        entries: impl IntoIterator<Item = (OperationId, String)>,
    ) -> Result<(), StoreError> {
        let entries = entries.into_iter().flat_map(|(operation, entry)| [operation.to_string(), entry]);
        self.at_part(segment, "forget", entries.collect::<Vec<_>>()).await.map(drop)
    }
}
