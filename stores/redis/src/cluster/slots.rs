//! [`SlotMap`]: which server has which slot. No I/O here.

use std::fmt;
use std::sync::Arc;

use redis::Value;

use super::super::hash_slot::SLOTS;
use super::super::reply;

/// Index of a slot that no server has.
const NOBODY: u16 = u16::MAX;

/// The address of a server, as the cluster announces it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Place {
    pub(super) host: Arc<str>,
    pub(super) port: u16,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.host, self.port)
    }
}

impl Place {
    pub(super) fn new(host: &str, port: u16) -> Self {
        Self { host: Arc::from(host), port }
    }

    /// Reads `host:port`, the name a server at `from` gives to another. An empty or unknown host
    /// stands for that of `from`.
    pub(super) fn named(text: &str, from: &Self) -> Option<Self> {
        let (host, port) = text.rsplit_once(':')?;
        Some(Self { host: known(host, from), port: port.parse().ok()? })
    }
}

fn known(host: &str, from: &Place) -> Arc<str> {
    if matches!(host, "" | "?") { Arc::clone(&from.host) } else { Arc::from(host) }
}

/// The server of each slot.
#[derive(Clone)]
pub(super) struct SlotMap {
    primaries: Vec<Place>,
    /// For each slot an index of `primaries`, or [`NOBODY`].
    owners: Box<[u16]>,
}

impl fmt::Debug for SlotMap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SlotMap").field("primaries", &self.primaries).finish_non_exhaustive()
    }
}

impl SlotMap {
    /// Reads the answer of the server at `from` to CLUSTER SLOTS.
    pub(super) fn read(value: &Value, from: &Place) -> Option<Self> {
        let mut map = Self { primaries: Vec::new(), owners: vec![NOBODY; SLOTS].into() };
        for range in reply::array(value)? {
            let [first, last, primary, ..] = reply::array(range)? else { return None };
            let [host, port, ..] = reply::array(primary)? else { return None };
            let number = |value| reply::int(value).and_then(|number| u16::try_from(number).ok());
            let host = if *host == Value::Nil { "" } else { reply::text(host)? };
            let index = map.index(&Place { host: known(host, from), port: number(port)? })?;
            let (first, last) = (usize::from(number(first)?), usize::from(number(last)?));
            map.owners.get_mut(first..=last)?.fill(index);
        }
        Some(map).filter(|map| !map.primaries.is_empty())
    }

    fn index(&mut self, place: &Place) -> Option<u16> {
        let index = self.primaries.iter().position(|known| known == place).unwrap_or_else(|| {
            self.primaries.push(place.clone());
            self.primaries.len() - 1
        });
        u16::try_from(index).ok().filter(|index| *index != NOBODY)
    }

    /// Returns the same map with this slot at `to`, or `None` if it is there already.
    pub(super) fn moved(&self, slot: u16, to: &Place) -> Option<Self> {
        if self.owner(slot) == Some(to) {
            return None;
        }
        let mut map = self.clone();
        let index = map.index(to)?;
        *map.owners.get_mut(usize::from(slot))? = index;
        Some(map)
    }

    pub(super) fn owner(&self, slot: u16) -> Option<&Place> {
        let index = self.owners.get(usize::from(slot))?;
        self.primaries.get(usize::from(*index))
    }

    /// Returns all servers with slots.
    pub(super) fn primaries(&self) -> &[Place] {
        &self.primaries
    }
}

/// Whether `value` is an answer to CLUSTER SLOTS.
#[cfg(feature = "testing")]
pub(in super::super) fn reads_slots(value: &Value) -> bool {
    SlotMap::read(value, &Place::new("h", 1)).is_some_and(|map| !map.primaries().is_empty())
}

/// Whether `text` is a place that a redirect may name.
#[cfg(feature = "testing")]
pub(in super::super) fn reads_place(text: &str) -> bool {
    Place::named(text, &Place::new("h", 1)).is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(first: i64, last: i64, host: Value, port: i64) -> Value {
        let primary = Value::Array(vec![host, Value::Int(port), Value::SimpleString("id".to_owned())]);
        Value::Array(vec![Value::Int(first), Value::Int(last), primary.clone(), primary])
    }

    fn text(text: &str) -> Value {
        Value::BulkString(text.into())
    }

    #[test]
    fn the_announced_servers_have_their_slots() {
        let from = Place::new("seed", 1);
        let answer = Value::Array(vec![
            range(0, 9, text("h1"), 7000),
            range(10, 19, text(""), 7001),
            range(20, 29, Value::Nil, 7002),
            range(40, 16383, text("h1"), 7000),
        ]);
        let map = SlotMap::read(&answer, &from).unwrap();
        let owner = |slot| map.owner(slot).map(ToString::to_string);
        assert_eq!(owner(0).as_deref(), Some("h1:7000"));
        assert_eq!(owner(19).as_deref(), Some("seed:7001"));
        assert_eq!(owner(20).as_deref(), Some("seed:7002"));
        assert_eq!(owner(30), None);
        assert_eq!(owner(16383).as_deref(), Some("h1:7000"));
        assert_eq!(map.primaries().len(), 3);
    }

    #[test]
    fn a_moved_slot_is_elsewhere_and_the_others_are_not() {
        let from = Place::new("h", 1);
        let map = SlotMap::read(&Value::Array(vec![range(0, 16383, text("h"), 1)]), &from).unwrap();
        let to = Place::named(":2", &from).unwrap();
        let moved = map.moved(7, &to).unwrap();
        assert_eq!((moved.owner(7), moved.owner(8)), (Some(&to), Some(&from)));
        assert!(moved.moved(7, &to).is_none(), "known already");
        assert_eq!(moved.primaries().len(), 2);
    }

    #[test]
    fn answers_that_make_no_sense_are_refused() {
        let from = Place::new("h", 1);
        for answer in [
            Value::Nil,
            Value::Array(vec![]),
            Value::Array(vec![Value::Int(1)]),
            Value::Array(vec![range(0, 16384, text("h"), 1)]),
            Value::Array(vec![range(-1, 5, text("h"), 1)]),
            Value::Array(vec![range(0, 5, text("h"), 70_000)]),
        ] {
            assert!(SlotMap::read(&answer, &from).is_none(), "{answer:?}");
        }
        assert_eq!(Place::named("::1:7000", &from), Some(Place::new("::1", 7000)));
        assert_eq!(Place::named("?:7000", &from), Some(Place::new("h", 7000)));
        assert_eq!(Place::named("7000", &from), None);
    }
}
