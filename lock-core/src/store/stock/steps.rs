//! [`fault_point`]: the places between the steps of an operation where tests stop a program.

#[cfg(feature = "testing")]
use std::cell::RefCell;
use std::future::Future;
#[cfg(feature = "testing")]
use std::sync::{Arc, PoisonError, RwLock};

/// Called at each step, with a name for it.
#[cfg(feature = "testing")]
pub type OnStep = Arc<dyn Fn(&str) + Send + Sync>;

#[cfg(feature = "testing")]
static ON_STEP: RwLock<Option<OnStep>> = RwLock::new(None);

#[cfg(feature = "testing")]
thread_local! {
    /// The hook of the future that is being polled on this thread.
    static OWN: RefCell<Option<OnStep>> = const { RefCell::new(None) };
}

/// Sets a hook for this process, which is called before and after each step of stock operations
/// that take several steps. A program that dies at such a place leaves something for others to
/// finish or undo. The hook gets the name of the place.
#[cfg(feature = "testing")]
pub fn on_stock_step(step: impl Fn(&str) + Send + Sync + 'static) {
    *ON_STEP.write().unwrap_or_else(PoisonError::into_inner) = Some(Arc::new(step));
}

/// Returns `work` with a hook for its own steps, and for those of tasks that are [`carried`].
#[cfg(feature = "testing")]
pub fn with_own_steps<F: Future>(step: OnStep, work: F) -> impl Future<Output = F::Output> {
    hooked(Some(step), work)
}

/// Returns `work`, to be spawned, with the hook of the future that spawns it.
pub fn carried<F: Future>(work: F) -> impl Future<Output = F::Output> {
    #[cfg(feature = "testing")]
    let work = hooked(OWN.with_borrow(Clone::clone), work);
    work
}

#[cfg(feature = "testing")]
fn hooked<F: Future>(hook: Option<OnStep>, work: F) -> impl Future<Output = F::Output> {
    let mut work = Box::pin(work);
    std::future::poll_fn(move |cx| {
        let outer = OWN.replace(hook.clone());
        let polled = work.as_mut().poll(cx);
        OWN.set(outer);
        polled
    })
}

/// Marks the place before or after a step; two words name it.
pub fn fault_point(_first: &str, _second: &str) {
    #[cfg(feature = "testing")]
    {
        let of_process = ON_STEP.read().unwrap_or_else(PoisonError::into_inner).clone();
        for step in of_process.into_iter().chain(OWN.with_borrow(Clone::clone)) {
            step(&format!("{_first} {_second}"));
        }
    }
}
