//! Steps for operators: status, force release, and the list of locks.

use std::sync::atomic::Ordering;

use lock_core::store::{Cursor, Kind, LockStatus, ScanRequest, Scanned, StoreError, StoreErrorKind};
use lock_core::{LockKey, OwnerId};
use redis::Value;

use super::connection::{At, Ready};
use super::fault::Fault;
use super::join::join;
use super::kinds::{declare, queue};
use super::late::may_kill;
use super::layout::Layout;
use super::names::Names;
use super::node::Node;
use super::reply;
use super::script::{self, Invocation};
use super::steps::{about, locks_and_counters};
use crate::trace::TARGET;

/// Approximate number of keys that the server looks at for one answer to SCAN.
const LOOKED_AT: u32 = 200;
/// Maximum number of locks that one script looks at; the server does nothing else meanwhile.
const BATCH: usize = 25;

impl Node {
    pub(super) async fn status(&self, key: &LockKey, at: At) -> Result<LockStatus, Fault> {
        let names = [self.name_of(key)?];
        let ready = self.connector.ready(at).await?;
        let answer = self.connector.run(&ready, &look_at(self, &names)).await;
        let value = answer.map_err(|fault| fault.map(|error| about(error, &names)))?;
        let [names] = names;
        match reply::array(&value) {
            Some([Value::ServerError(error)]) => {
                Err(about(self.connector.refused(&ready, error), &[names]).into())
            }
            Some([status]) => Ok(self.read_status(status, names)?),
            _ => Err(self.senseless(&value).into()),
        }
    }

    fn read_status(&self, value: &Value, names: Names<'_>) -> Result<LockStatus, StoreError> {
        let read = if self.options.layout.is_plain() { reply::plain_status } else { reply::status };
        let status = read(value).ok_or_else(|| self.senseless(value))?;
        let mut status = status.map_err(|reason| self.foreign(names.lock(), reason))?;
        // A channel without watchers in this process stays subscribed for a while.
        let channels = match status.kind {
            None => &[Kind::Mutex, Kind::Read][..],
            Some(Kind::Fair) => &[],
            Some(Kind::Read | Kind::Write) => &[Kind::Read],
            Some(_) => &[Kind::Mutex],
        };
        for &kind in channels {
            if status.waiters > 0 {
                let own = self.subscriber.own(&names.channel(kind).to_string());
                status.waiters -= u64::from(own.subscribed && own.watches == 0);
            }
        }
        Ok(status)
    }

    pub(super) async fn force_release(&self, key: &LockKey, at: At) -> Result<bool, Fault> {
        let names = self.name_of(key)?;
        let ready = self.connector.ready(at).await?;
        let others = || [queue(&names), vec![names.counter().to_string()]].concat();
        let others = if self.options.layout.is_plain() { Vec::new() } else { self.declared(others) };
        let mut invocation = self.invocation(&script::FORCE_RELEASE, 1 + others.len(), 0);
        declare(invocation.name(names.lock()), others);
        let answer = self.connector.run(&ready, &invocation).await;
        let value = answer.map_err(|fault| fault.map(|error| about(error, std::slice::from_ref(&names))))?;
        let freed = reply::force_released(&value).ok_or_else(|| self.senseless(&value))?;
        Ok(freed.map_err(|reason| self.foreign(names.lock(), reason))?)
    }

    /// Warns once of rights that the user lacks and locks need, before the first lock fails.
    pub(super) async fn warn_of_rights(&self, key: &LockKey, at: At) -> Result<(), Fault> {
        if self.rights_known.load(Ordering::Relaxed) {
            return Ok(());
        }
        let missing = self.missing_rights(key, at).await?;
        self.rights_known.store(true, Ordering::Relaxed);
        if !missing.is_empty() {
            let page = if self.options.layout.is_plain() { "plain" } else { "redis" };
            tracing::warn!(
                target: TARGET,
                store = ?self.address,
                missing,
                "the user lacks rights: locks that need them will fail, see docs/book/src/stores/{page}.md"
            );
        }
        if self.options.layout == Layout::Plain
            && !may_kill(&self.connector, &self.connector.ready(at).await?).await?
        {
            tracing::warn!(
                target: TARGET,
                store = ?self.address,
                "the user may not CLIENT INFO and CLIENT KILL: a request that the server executes late may keep a key \
                 taken for one lease, see docs/book/src/stores/plain.md"
            );
        }
        Ok(())
    }

    /// Returns the rights that locks need and the user lacks. `key` must be one that no lock has.
    pub(super) async fn missing_rights(&self, key: &LockKey, at: At) -> Result<String, Fault> {
        let names = self.name_of(key)?;
        let mut invocation = self.invocation(&script::RIGHTS, 1, 9);
        invocation.name(names.lock()).name(names.channel(Kind::Mutex)).name(names.channel(Kind::Read));
        for name in names.of_queue() {
            invocation.name(name);
        }
        invocation.name(names.counter()).name(names.intent()).arg(names.hold(&OwnerId::new("nobody:1")));
        let ready = self.connector.ready(at).await?;
        match self.connector.run(&ready, &invocation).await {
            Ok(value) => {
                let missing = reply::array(&value).unwrap_or_default().iter().filter_map(reply::text);
                Ok(missing.collect::<Vec<_>>().join(", "))
            }
            Err(fault) if fault.error.kind() == StoreErrorKind::Denied => Ok(fault.error.to_string()),
            Err(fault) => Err(fault),
        }
    }

    pub(super) async fn scan(&self, request: &ScanRequest) -> Result<Scanned, Fault> {
        let is_plain = self.options.layout.is_plain();
        if is_plain && self.options.prefix.is_empty() && request.prefix.is_empty() {
            let what = "a list of locks in the plain layout needs a prefix, since any string could be a lock";
            return Err(self.address.error(StoreErrorKind::Unsupported, what).into());
        }
        let mut ready = self.connector.ready(At::once(request.timeout)).await?;
        let mut scan = redis::cmd("SCAN");
        let pattern = format!("{}{}*", literal(&self.options.prefix), literal(&request.prefix));
        let from = request.cursor.as_ref().map_or(Ok(0), Cursor::to_number)?;
        scan.arg(from).arg("MATCH").arg(pattern);
        scan.arg("COUNT").arg(LOOKED_AT).arg("TYPE").arg(if is_plain { "string" } else { "hash" });
        let value = self.connector.call(&ready, &scan).await?;
        let (next, found) = reply::scanned(&value).ok_or_else(|| self.senseless(&value))?;

        // A name that yields no key, or no lock name with the prefix, cannot be queried either.
        let keys: Vec<LockKey> = found
            .into_iter()
            .filter_map(|name| LockKey::new(name.strip_prefix(&self.options.prefix)?).ok())
            .filter(|key| self.name_of(key).is_ok_and(|names| !names.is_counter()))
            .collect();
        // One batch after another, so that other calls come in between. In a cluster each key may
        // be in its own slot: all at once.
        let batch = if self.has_peers { 1 } else { BATCH };
        ready = self.connector.later(&ready);
        let looks = keys.chunks(batch).map(|keys| self.look_at_some(&ready, keys));
        let found = if self.has_peers {
            join(looks).await
        } else {
            let mut found = Vec::new();
            for look in looks {
                found.push(look.await);
            }
            found
        };
        let mut locks = Vec::new();
        for found in found {
            match found {
                Ok(found) => locks.extend(found),
                // The slot has moved since the key was found.
                Err(fault) if self.has_peers && fault.redirect.is_some() => {}
                Err(fault) => return Err(fault),
            }
        }
        Ok(Scanned { locks, next: Some(next).filter(|&next| next != 0).map(Cursor::from) })
    }
}

impl Node {
    /// Returns those of `keys` that are locked.
    async fn look_at_some(
        &self,
        ready: &Ready,
        keys: &[LockKey],
    ) -> Result<Vec<(LockKey, LockStatus)>, Fault> {
        let names: Result<Vec<_>, _> = keys.iter().map(|key| self.name_of(key)).collect();
        let names = names?;
        let ready = self.connector.later(ready);
        let value = self.connector.run(&ready, &look_at(self, &names)).await?;
        let answers = reply::array(&value)
            .filter(|answers| answers.len() == names.len())
            .ok_or_else(|| self.senseless(&value))?;
        let mut locks = Vec::new();
        for ((answer, key), names) in answers.iter().zip(keys).zip(names) {
            let status = match answer {
                Value::ServerError(error) => Err(self.connector.refused(&ready, error)),
                status => self.read_status(status, names),
            };
            match status {
                Ok(status) if status.is_locked() => locks.push((key.clone(), status)),
                Ok(_) => {}
                // Not a lock, as most hashes are not.
                Err(error) if error.kind() == StoreErrorKind::ForeignData => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(locks)
    }
}

fn look_at(node: &Node, names: &[Names<'_>]) -> Invocation {
    let mut invocation = node.invocation(&script::STATUS, 2 * names.len(), 0);
    locks_and_counters(&mut invocation, names);
    invocation
}

/// Returns a pattern that only `text` matches.
fn literal(text: &str) -> String {
    let mut pattern = String::with_capacity(text.len());
    for c in text.chars() {
        if matches!(c, '*' | '?' | '[' | ']' | '\\') {
            pattern.push('\\');
        }
        pattern.push(c);
    }
    pattern
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_is_taken_literally() {
        assert_eq!(literal("a:{b}-^"), "a:{b}-^");
        assert_eq!(literal(r"*?[a]\"), r"\*\?\[a\]\\");
    }
}
