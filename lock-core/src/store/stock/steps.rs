//! [`fault_point`]: the places between the steps of an operation, at which tests stop a program.

#[cfg(feature = "testing")]
use std::sync::{Arc, PoisonError, RwLock};

/// Called at each step, with a name for it.
#[cfg(feature = "testing")]
type OnStep = Arc<dyn Fn(&str) + Send + Sync>;

#[cfg(feature = "testing")]
static ON_STEP: RwLock<Option<OnStep>> = RwLock::new(None);

/// Calls `step` in this process before and after each step of operations on stocks that take
/// several, with a name for it. At these places a program that dies leaves something for others to
/// finish or undo.
#[cfg(feature = "testing")]
pub fn on_stock_step(step: impl Fn(&str) + Send + Sync + 'static) {
    *ON_STEP.write().unwrap_or_else(PoisonError::into_inner) = Some(Arc::new(step));
}

/// Marks the place before or after a step, which two words name.
pub fn fault_point(_first: &str, _second: &str) {
    #[cfg(feature = "testing")]
    {
        let step = ON_STEP.read().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some(step) = step {
            step(&format!("{_first} {_second}"));
        }
    }
}
