//! Slots that move from one node to another.

use super::Cluster;
use crate::redis::{Reply, text, until};

/// A slot that is moving.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlotMove {
    /// The slot.
    pub slot: u16,
    /// The place in [`Cluster::nodes`] of the node that gives the slot away.
    pub from: usize,
    /// The place of the node that gets it.
    pub to: usize,
}

impl Cluster {
    /// Moves a slot with all its keys to the primary at `to`.
    ///
    /// # Panics
    ///
    /// When a node refuses.
    #[track_caller]
    pub fn move_slot(&self, slot: u16, to: usize) {
        if self.node_of_slot(slot) == to {
            return;
        }
        let moving = self.begin_move(slot, to);
        self.move_all_keys(moving);
        self.end_move(moving);
    }

    /// Tells both nodes that a slot is moving. From now on the old node answers `ASK` for keys that
    /// it does not have. It answers `TRYAGAIN` when it has only some of the keys of a command.
    ///
    /// # Panics
    ///
    /// When a node refuses.
    #[track_caller]
    pub fn begin_move(&self, slot: u16, to: usize) -> SlotMove {
        let from = self.node_of_slot(slot);
        let (slot_text, [from_id, to_id]) = (slot.to_string(), [from, to].map(|node| self.id_of(node)));
        self.nodes[to].cli(&["CLUSTER", "SETSLOT", &slot_text, "IMPORTING", &from_id]);
        self.nodes[from].cli(&["CLUSTER", "SETSLOT", &slot_text, "MIGRATING", &to_id]);
        SlotMove { slot, from, to }
    }

    /// Returns the keys that the old node still has of a moving slot.
    ///
    /// # Panics
    ///
    /// When it does not answer.
    #[track_caller]
    #[must_use]
    pub fn keys_left(&self, moving: SlotMove) -> Vec<String> {
        let answer =
            self.nodes[moving.from].cli(&["CLUSTER", "GETKEYSINSLOT", &moving.slot.to_string(), "1000"]);
        answer.lines().map(str::to_owned).collect()
    }

    /// Moves some keys of a moving slot; keys that do not exist are left out.
    ///
    /// # Panics
    ///
    /// When a node refuses.
    #[track_caller]
    pub fn move_keys(&self, moving: SlotMove, keys: &[&str]) {
        if keys.is_empty() {
            return;
        }
        let port = self.nodes[moving.to].port().to_string();
        let mut command = vec!["MIGRATE", "127.0.0.1", &port, "", "0", "10000"];
        if let Some(password) = &self.options.password {
            command.extend(["AUTH", password]);
        }
        command.push("KEYS");
        command.extend(keys);
        self.nodes[moving.from].cli(&command);
    }

    /// Moves all keys that the old node still has, including those that arrive meanwhile.
    ///
    /// # Panics
    ///
    /// When a node refuses.
    #[track_caller]
    pub fn move_all_keys(&self, moving: SlotMove) {
        loop {
            let keys = self.keys_left(moving);
            if keys.is_empty() {
                return;
            }
            self.move_keys(moving, &keys.iter().map(String::as_str).collect::<Vec<_>>());
        }
    }

    /// Tells all nodes that the slot has its new owner. Keys still on the old node are lost to
    /// clients.
    ///
    /// # Panics
    ///
    /// When a node refuses, or the nodes do not agree in the end.
    #[track_caller]
    pub fn end_move(&self, moving: SlotMove) {
        let (slot, id) = (moving.slot.to_string(), self.id_of(moving.to));
        let command = ["CLUSTER", "SETSLOT", &slot, "NODE", &id];
        // The new node first: no client may be sent to a node that does not know that it has the
        // slot.
        self.nodes[moving.to].cli(&command);
        for primary in self.primaries() {
            if primary != moving.to {
                // A primary that does not answer hears it from the others.
                let _ = text(&self.nodes[primary], &command);
            }
        }
        self.wait_until(|view| view.owner(moving.slot) == Some(moving.to), "the slot has not arrived");
    }

    /// Cancels a move: the old node keeps the slot, and keys that have been moved are moved back.
    ///
    /// # Panics
    ///
    /// When a node refuses.
    #[track_caller]
    pub fn cancel_move(&self, moving: SlotMove) {
        let slot = moving.slot.to_string();
        let id = self.id_of(moving.from);
        // The old node first: the new one may not give the slot back while the old one still sends
        // it clients.
        self.nodes[moving.from].cli(&["CLUSTER", "SETSLOT", &slot, "STABLE"]);
        let back = SlotMove { slot: moving.slot, from: moving.to, to: moving.from };
        self.move_all_keys(back);
        self.nodes[moving.to].cli(&["CLUSTER", "SETSLOT", &slot, "NODE", &id]);
    }

    /// Returns the id of a node, which never changes.
    #[track_caller]
    fn id_of(&self, node: usize) -> String {
        let answer = until(super::LONG, || match self.nodes[node].command(&["CLUSTER", "MYID"]) {
            Ok(Reply::Text(id)) => Ok(id),
            other => Err(format!("{other:?}")),
        });
        match answer {
            Ok(id) => id,
            Err(why) => panic!("{why}"),
        }
    }
}
