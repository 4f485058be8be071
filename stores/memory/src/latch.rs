//! [`MemoryLatches`]: latches inside one process, with the semantics of the Redis ones.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use lock_core::LockKey;
use lock_core::internal::clock::Tick;
use lock_core::internal::sync::{Mutex, lock};
use lock_core::store::kit::Watches;
use lock_core::store::{BoxFuture, CountDownRequest, LatchStore, StoreError, StoreErrorKind, Watch};

use super::handle::Handle;
use super::step::in_time;

/// All latches of a store, by prefix and key.
#[derive(Default)]
pub(super) struct Latches {
    table: Mutex<Table>,
    watches: Watches,
}

#[derive(Default)]
struct Table {
    /// Counts above zero.
    counts: HashMap<String, u64>,
    /// Latch and id of each counted call, as long as they are remembered.
    done: HashSet<(String, String)>,
    forget: BTreeSet<(Tick, String, String)>,
}

impl Table {
    fn forget(&mut self, now: Tick) {
        while let Some((due, ..)) = self.forget.first()
            && *due <= now
        {
            let Some((_, name, id)) = self.forget.pop_first() else { return };
            self.done.remove(&(name, id));
        }
    }
}

/// The latches of a memory store.
pub(super) struct MemoryLatches(Handle);

impl MemoryLatches {
    pub(super) fn new(handle: Handle) -> Self {
        Self(handle)
    }

    fn call<T, F>(&self, key: LockKey, work: F) -> BoxFuture<Result<T, StoreError>>
    where
        T: Send + 'static,
        F: FnOnce(&Handle, String) -> Result<T, StoreError> + Send + 'static,
    {
        self.0.call(move |handle| {
            let name = handle.full_name(&key);
            if name.contains('{') {
                let what = format!(
                    "the latch {name:?} can't have a hash tag: on a Redis Cluster, its Redisson channel would be in \
                     another slot. Use a name and a prefix without braces"
                );
                return Err(StoreError::new(StoreErrorKind::Unsupported, what));
            }
            work(handle, name)
        })
    }
}

impl fmt::Debug for MemoryLatches {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryLatches").field("prefix", &self.0.prefix).finish_non_exhaustive()
    }
}

impl Handle {
    /// Makes one atomic step; `work` says whether waiters are to be notified.
    fn latch_step<T>(&self, name: &str, work: impl FnOnce(&mut Table, Tick, &mut bool) -> T) -> T {
        let latches = &self.shared.latches;
        let mut table = lock(&latches.table);
        let now = self.shared.clock.now();
        table.forget(now);
        let mut tell = false;
        let result = work(&mut table, now, &mut tell);
        drop(table);
        if tell {
            latches.watches.ring(name);
        }
        result
    }

    fn count_down(&self, name: &str, request: &CountDownRequest) -> Result<u64, StoreError> {
        let latest = request.stamp(self.server_time());
        self.latch_step(name, |table, now, tell| {
            let server_time = self.shared.server_time(now);
            in_time(server_time, latest)?;
            let Some(count) = table.counts.get_mut(name) else { return Ok(0) };
            if !table.done.insert((name.to_owned(), request.id.clone())) {
                return Ok(*count);
            }
            table.forget.insert((now + request.remember, name.to_owned(), request.id.clone()));
            *count -= 1;
            let left = *count;
            if left == 0 {
                table.counts.remove(name);
                *tell = true;
            }
            Ok(left)
        })
    }
}

impl LatchStore for MemoryLatches {
    fn try_set_count(&self, key: LockKey, count: u32, _: Duration) -> BoxFuture<Result<bool, StoreError>> {
        self.call(key, move |handle, name| {
            Ok(handle.latch_step(&name, |table, _, tell| {
                let free = !table.counts.contains_key(&name);
                if free {
                    table.counts.insert(name.clone(), count.max(1).into());
                    *tell = true;
                }
                free
            }))
        })
    }

    fn count_down(&self, request: Arc<CountDownRequest>) -> BoxFuture<Result<u64, StoreError>> {
        self.call(request.key.clone(), move |handle, name| handle.count_down(&name, &request))
    }

    fn count(&self, key: LockKey, _: Duration) -> BoxFuture<Result<u64, StoreError>> {
        self.call(key, |handle, name| {
            Ok(handle.latch_step(&name, |table, _, _| table.counts.get(&name).copied().unwrap_or(0)))
        })
    }

    fn delete(&self, key: LockKey, _: Duration) -> BoxFuture<Result<bool, StoreError>> {
        self.call(key, |handle, name| {
            Ok(handle.latch_step(&name, |table, _, tell| {
                *tell = table.counts.remove(&name).is_some();
                *tell
            }))
        })
    }

    fn watch(&self, key: LockKey, _: Duration) -> BoxFuture<Result<Watch, StoreError>> {
        self.call(key, |handle, name| Ok(handle.shared.latches.watches.watch(&name)))
    }
}
