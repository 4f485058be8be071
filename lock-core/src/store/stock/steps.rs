//! [`fault_point`]: the places between the steps of an operation where tests stop a program.

#[cfg(feature = "testing")]
use std::sync::{Arc, PoisonError, RwLock};

/// Called at each step, with a name for it.
#[cfg(feature = "testing")]
type OnStep = Arc<dyn Fn(&str) + Send + Sync>;

#[cfg(feature = "testing")]
static ON_STEP: RwLock<Option<OnStep>> = RwLock::new(None);

/// Sets a hook for this process, which is called before and after each step of stock operations
/// that take several steps. A program that dies at such a place leaves something for others to
/// finish or undo. The hook gets the name of the place.
#[cfg(feature = "testing")]
pub fn on_stock_step(step: impl Fn(&str) + Send + Sync + 'static) {
    *ON_STEP.write().unwrap_or_else(PoisonError::into_inner) = Some(Arc::new(step));
}

/// Marks the place before or after a step; two words name it.
pub fn fault_point(_first: &str, _second: &str) {
    #[cfg(feature = "testing")]
    {
        let step = ON_STEP.read().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some(step) = step {
            step(&format!("{_first} {_second}"));
        }
    }
}
