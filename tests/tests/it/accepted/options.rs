//! Every option, in its literal and its computed form.
use std::time::Duration;

use lock_runtime::{LockError, LockKey, LockManager, distributed_lock};

const NAME: &str = "texts";
const WAIT: Duration = Duration::from_secs(3);

struct Service {
    locks: LockManager,
    wait: Duration,
    tenant: String,
}

impl Service {
    #[distributed_lock(
        key = "{<self.tenant>}:order:<id>",
        wait = self.wait,
        max_hold = Duration::from_secs(50),
        min_hold = "500ms",
        manager = self.locks,
        guard = lock,
        on_lost = finish,
        on_busy = error,
        prefix = "shop:",
        name = "orders",
        crate = lock_runtime,
    )]
    async fn every_option(&self, id: u64) -> Result<bool, LockError> {
        let _ = id;
        Ok(lock.is_lost())
    }

    #[distributed_lock(key = self.key(), manager = self.manager(), wait = WAIT)]
    async fn computed(&self) -> Result<(), LockError> {
        Ok(())
    }

    fn key(&self) -> LockKey {
        LockKey::new(&self.tenant).unwrap()
    }

    fn manager(&self) -> LockManager {
        self.locks.clone()
    }
}

#[distributed_lock(key = "a", manager = locks.as_ref().ok_or_else(missing)?)]
async fn optional_manager(locks: Option<LockManager>) -> Result<(), LockError> {
    Ok(())
}

fn missing() -> LockError {
    LockError::Misconfigured { reason: "no manager".into() }
}

#[distributed_lock(key = "a", wait = "none", on_lost = cancel)]
async fn no_wait() -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(key = "a", wait = "forever", crate = "::lock_runtime")]
async fn forever() -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(key = format!("order:{id}"), wait = "1h 30m", lease = "2m", prefix = name, name = NAME)]
async fn texts(name: &str, id: u64) -> Result<(), LockError> {
    let _ = id;
    Ok(())
}

#[allow(clippy::unnecessary_wraps)]
fn busy(_: LockError) -> Result<u8, LockError> {
    Ok(0)
}

#[allow(clippy::needless_pass_by_value)]
fn failed(error: LockError) -> u8 {
    u8::from(error.is_busy())
}

mod fallbacks {
    pub(super) fn any<T: Default>(_: lock_runtime::LockError) -> T {
        T::default()
    }
}

#[distributed_lock(key = "a", on_busy = busy)]
async fn busy_path() -> Result<u8, LockError> {
    Ok(1)
}

#[distributed_lock(key = "a", on_error = failed)]
async fn error_path() -> u8 {
    1
}

#[distributed_lock(key = "a", on_busy = fallbacks::any::<u8>, on_error = failed)]
async fn both_paths() -> u8 {
    1
}

#[distributed_lock(key = "a", on_busy = skip)]
async fn skip_result() -> Result<Option<u8>, LockError> {
    Ok(Some(1))
}

#[distributed_lock(key = "a", on_busy = skip, on_error = fallbacks::any)]
async fn skip_unit() {}

#[distributed_lock(key = "a", on_busy = skip, on_error = fallbacks::any)]
async fn skip_option() -> Option<String> {
    Some(String::new())
}

#[test]
fn compiles() {
    fn used<F>(_: F) {}
    used(Service::every_option);
    used(Service::computed);
    used(optional_manager);
    used((no_wait, forever, texts, busy_path, error_path, both_paths, skip_result, skip_unit, skip_option));
}
