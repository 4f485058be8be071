//! Steps for requests that include other locks than mutexes: items of any kind in one script.

use std::time::Duration;

use lock_core::store::{AcquireRequest, Item, Kind, RenewItem, ServerTime, Standing};

use super::names::Names;
use super::node::Node;
use super::script::{self, Invocation, Script};
use super::steps::{locks, locks_and_counters, millis};

/// Whether the leaner scripts for mutexes suffice.
pub(super) fn are_mutexes<'a>(items: impl IntoIterator<Item = &'a Item>) -> bool {
    items.into_iter().all(|item| item.kind == Kind::Mutex)
}

/// Returns the letter of a kind in kinds.lua.
fn letter(kind: Kind) -> &'static str {
    match kind {
        Kind::Fair => "f",
        Kind::Read => "r",
        Kind::Write => "w",
        _ => "m",
    }
}

/// Returns the number of a standing in renew_kinds.lua.
fn standing(standing: Standing) -> u8 {
    match standing {
        Standing::Holder => 0,
        Standing::Waiter => 1,
        Standing::Far => 2,
    }
}

fn kinds_and_owners(invocation: &mut Invocation, items: &[Item]) {
    for item in items {
        invocation.arg(letter(item.kind)).arg(item.owner.as_str());
    }
}

/// Returns the keys other than the locks that scripts use for these items. Some servers execute no
/// script that uses an undeclared key. The holds of other readers are missing, since their names
/// are not known here. `reads` adds keys that a writer's script only reads. A key that is declared
/// without need may be one to which the user has no right.
fn others<'a>(items: impl IntoIterator<Item = &'a Item>, names: &[Names<'_>], reads: bool) -> Vec<String> {
    let of = |(item, names): (&Item, &Names<'_>)| match item.kind {
        Kind::Fair => queue(names),
        Kind::Write if !reads => vec![names.intent().to_string()],
        Kind::Read | Kind::Write => vec![names.intent().to_string(), names.hold(&item.owner)],
        _ => Vec::new(),
    };
    items.into_iter().zip(names).flat_map(of).collect()
}

/// Returns these keys of one fair lock.
pub(super) fn queue(names: &Names<'_>) -> Vec<String> {
    names.of_queue().map(|name| name.to_string()).to_vec()
}

/// Calls a script that takes the locks, and the owner and kind of each hold.
fn giving_back(
    node: &Node,
    script: &'static Script,
    time: Option<Duration>,
    items: &[Item],
    names: &[Names<'_>],
) -> Invocation {
    let others = node.declared(|| {
        let mut others = others(items, names, true);
        // A release may grant the lock to the next in the queue.
        let fair = items.iter().zip(names).filter(|(item, _)| item.kind == Kind::Fair);
        others.extend(fair.map(|(_, names)| names.counter().to_string()));
        others
    });
    let mut invocation = node.invocation(script, names.len() + others.len(), 1 + 2 * names.len());
    locks(&mut invocation, names);
    declare(&mut invocation, others);
    if let Some(time) = time {
        invocation.arg(millis(time));
    }
    kinds_and_owners(&mut invocation, items);
    invocation
}

/// Declares further keys. Must be called before the arguments are added.
pub(super) fn declare(invocation: &mut Invocation, keys: Vec<String>) {
    for key in keys {
        invocation.arg(key);
    }
}

/// Returns the leanest script for these items: `rw` has no fair locks, `fair` has nothing else.
fn leanest<'a>(
    items: impl IntoIterator<Item = &'a Item>,
    rw: &'static Script,
    fair: &'static Script,
    any: &'static Script,
) -> &'static Script {
    let (mut fairs, mut others) = (false, false);
    for item in items {
        fairs |= item.kind == Kind::Fair;
        others |= item.kind != Kind::Fair;
    }
    match (fairs, others) {
        (false, _) => rw,
        (true, false) => fair,
        (true, true) => any,
    }
}

pub(super) fn release(node: &Node, items: &[Item], names: &[Names<'_>]) -> Invocation {
    let script = leanest(items, &script::RELEASE_RW, &script::RELEASE_FAIR, &script::RELEASE_KINDS);
    giving_back(node, script, None, items, names)
}

pub(super) fn withdrawal(node: &Node, items: &[Item], names: &[Names<'_>]) -> Invocation {
    let script = leanest(items, &script::WITHDRAW_RW, &script::WITHDRAW_FAIR, &script::WITHDRAW_KINDS);
    giving_back(node, script, None, items, names)
}

impl Node {
    /// Returns the keys that are declared only for servers that demand it. Returns none in a
    /// cluster, where a script is refused if a declared key is missing while its slot moves.
    pub(super) fn declared(&self, keys: impl FnOnce() -> Vec<String>) -> Vec<String> {
        if self.has_peers { Vec::new() } else { keys() }
    }

    pub(super) fn acquisition(
        &self,
        request: &AcquireRequest,
        items: &[Item],
        wait: Option<Duration>,
        names: &[Names<'_>],
        latest: ServerTime,
    ) -> Invocation {
        let script = leanest(items, &script::ACQUIRE_RW, &script::ACQUIRE_FAIR, &script::ACQUIRE_KINDS);
        let others = self.declared(|| others(items, names, false));
        let mut invocation = self.invocation(script, 2 * names.len() + others.len(), 6 + 2 * names.len());
        locks_and_counters(&mut invocation, names);
        declare(&mut invocation, others);
        self.grant_arguments(&mut invocation, request, latest);
        match wait {
            Some(wait) => invocation.arg(millis(wait)),
            None => invocation.arg(-1),
        };
        kinds_and_owners(&mut invocation, items);
        invocation
    }

    pub(super) fn lingering(&self, linger: Duration, items: &[Item], names: &[Names<'_>]) -> Invocation {
        giving_back(self, &script::LINGER_KINDS, Some(linger), items, names)
    }

    /// Calls a script that takes the locks, and the counters of those for which `lives` is not 0.
    pub(super) fn renewing(
        &self,
        script: &'static Script,
        items: &[RenewItem],
        names: &[Names<'_>],
        lives: impl Fn(&RenewItem) -> u64,
        reads: bool,
    ) -> Invocation {
        let counters =
            items.iter().zip(names).filter(|(renewal, _)| lives(renewal) > 0).map(|(_, names)| names);
        let others = self.declared(|| others(items.iter().map(|renewal| &renewal.item), names, reads));
        let keys = names.len() + counters.clone().count() + others.len();
        let mut invocation = self.invocation(script, keys, 5 * names.len());
        locks(&mut invocation, names);
        for names in counters {
            invocation.name(names.counter());
        }
        declare(&mut invocation, others);
        invocation
    }

    pub(super) fn renewing_kinds(
        &self,
        items: &[RenewItem],
        names: &[Names<'_>],
        lives: impl Fn(&RenewItem) -> u64,
    ) -> Invocation {
        let of = items.iter().map(|renewal| &renewal.item);
        let script = leanest(of, &script::RENEW_RW, &script::RENEW_FAIR, &script::RENEW_KINDS);
        let mut invocation = self.renewing(script, items, names, &lives, false);
        for renewal in items {
            invocation
                .arg(letter(renewal.item.kind))
                .arg(standing(renewal.standing))
                .arg(renewal.item.owner.as_str())
                .arg(millis(renewal.lease))
                .arg(lives(renewal));
        }
        invocation
    }

    pub(super) fn downgrading(
        &self,
        items: &[RenewItem],
        names: &[Names<'_>],
        lives: impl Fn(&RenewItem) -> u64,
    ) -> Invocation {
        let mut invocation = self.renewing(&script::DOWNGRADE, items, names, &lives, true);
        for renewal in items {
            invocation.arg(renewal.item.owner.as_str()).arg(millis(renewal.lease)).arg(lives(renewal));
        }
        invocation
    }
}
