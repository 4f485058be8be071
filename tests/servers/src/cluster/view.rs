//! The cluster as one of its nodes sees it.

use crate::RedisServer;
use crate::redis::text;

pub(super) const SLOTS: u16 = 16_384;

/// Returns the slot of a key. Only the text between the first braces counts, unless it is empty.
#[must_use]
pub fn slot_of(key: &str) -> u16 {
    let tag = key.split_once('{').and_then(|(_, rest)| rest.split_once('}')).map(|(tag, _)| tag);
    let counts = tag.filter(|tag| !tag.is_empty()).unwrap_or(key);
    let mut crc = 0_u16;
    for byte in counts.bytes() {
        crc ^= u16::from(byte) << 8;
        for _ in 0..8 {
            crc = if crc & 0x8000 == 0 { crc << 1 } else { (crc << 1) ^ 0x1021 };
        }
    }
    crc % SLOTS
}

/// The answer to `CLUSTER NODES`, without nodes that the test has not started.
#[derive(Debug)]
pub(super) struct View {
    /// Highest configuration epoch of a primary. A view with a higher epoch is more recent.
    pub(super) epoch: u64,
    lines: Vec<Line>,
}

#[derive(Debug)]
struct Line {
    /// The place among the nodes.
    node: usize,
    id: String,
    flags: String,
    primary: String,
    connected: bool,
    /// First and last slot of each range.
    slots: Vec<(u16, u16)>,
}

impl Line {
    fn is(&self, flag: &str) -> bool {
        self.flags.split(',').any(|other| other == flag)
    }

    fn has(&self, slot: u16) -> bool {
        self.slots.iter().any(|(first, last)| (*first..=*last).contains(&slot))
    }
}

impl View {
    /// Returns how `node` sees `nodes`.
    pub(super) fn of(node: &RedisServer, nodes: &[RedisServer]) -> Result<Self, String> {
        let answer = text(node, &["CLUSTER", "NODES"])?;
        let mut view = Self { epoch: 0, lines: Vec::new() };
        for line in answer.lines() {
            let words: Vec<&str> = line.split(' ').collect();
            // id, ip:port@bus, flags, primary, ping, pong, epoch, link, slots, moving slots
            let [id, address, flags, primary, _, _, epoch, link, slots @ ..] = words.as_slice() else {
                return Err(format!("{}: {line:?}", node.addr()));
            };
            let port = address.split(['@', ',']).next().and_then(|address| address.rsplit_once(':'));
            let port = port.and_then(|(_, port)| port.parse().ok());
            let Some(at) = nodes.iter().position(|node| Some(node.announced_port()) == port) else {
                continue;
            };
            let range = |word: &&&str| {
                let (first, last) = word.split_once('-').unwrap_or((word, word));
                Some((first.parse().ok()?, last.parse().ok()?))
            };
            let line = Line {
                node: at,
                id: (*id).to_owned(),
                flags: (*flags).to_owned(),
                primary: (*primary).to_owned(),
                connected: *link == "connected",
                slots: slots.iter().filter_map(|word| range(&word)).collect(),
            };
            if line.is("master") && !line.slots.is_empty() {
                view.epoch = view.epoch.max(epoch.parse().unwrap_or_default());
            }
            view.lines.push(line);
        }
        Ok(view)
    }

    pub(super) fn id(&self, node: usize) -> Option<String> {
        self.lines.iter().find(|line| line.node == node).map(|line| line.id.clone())
    }

    pub(super) fn owner(&self, slot: u16) -> Option<usize> {
        self.lines.iter().find(|line| line.is("master") && line.has(slot)).map(|line| line.node)
    }

    pub(super) fn slots_of(&self, node: usize) -> Vec<u16> {
        let line = self.lines.iter().find(|line| line.node == node);
        line.into_iter().flat_map(|line| &line.slots).flat_map(|(first, last)| *first..=*last).collect()
    }

    /// Returns the primaries that serve slots and do not count as dead.
    pub(super) fn primaries(&self) -> Vec<usize> {
        let alive = |line: &&Line| line.is("master") && !line.is("fail") && !line.slots.is_empty();
        self.lines.iter().filter(alive).map(|line| line.node).collect()
    }

    pub(super) fn replicas_of(&self, primary: usize) -> Vec<usize> {
        let Some(id) = self.id(primary) else { return Vec::new() };
        self.lines.iter().filter(|line| line.primary == id).map(|line| line.node).collect()
    }

    /// Returns why the cluster is not ready.
    pub(super) fn check(&self, primaries: usize) -> Result<(), String> {
        let bad =
            |line: &&Line| line.is("fail") || line.is("fail?") || line.is("handshake") || !line.connected;
        if let Some(line) = self.lines.iter().find(bad) {
            return Err(format!("not well: {line:?}"));
        }
        if self.primaries().len() != primaries {
            return Err(format!("the primaries are {:?}", self.primaries()));
        }
        match self.lines.iter().find(|line| line.slots.is_empty() && !line.is("slave")) {
            None => Ok(()),
            Some(line) => Err(format!("neither primary nor replica: {line:?}")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_those_of_the_specification() {
        // The vectors of the cluster specification and of the page on `CLUSTER KEYSLOT`.
        assert_eq!(slot_of("123456789"), 0x31C3);
        assert_eq!(slot_of("somekey"), 11_058);
        assert_eq!(slot_of("foo{hash_tag}"), 2_515);
        assert_eq!(slot_of("{a}b{c}"), slot_of("a"));
        assert_ne!(slot_of("foo{}{bar}"), slot_of("bar"));
    }
}
