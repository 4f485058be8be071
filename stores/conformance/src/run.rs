//! Runs one test on a fresh subject, with what its store can do at hand.

use std::sync::Mutex;
use std::time::Instant;

use tokio::time::Instant as TokioInstant;

use super::*;

/// The store and the time of the running test.
struct Current {
    abilities: Abilities,
    /// The kind of the queue under test.
    queued: Kind,
    began: TokioInstant,
    /// Time that the test has let pass on purpose.
    rested: Mutex<Duration>,
}

tokio::task_local! {
    static CURRENT: Arc<Current>;
}

/// Returns what `look` makes of the abilities of the store under test.
pub(super) fn abilities<T>(look: impl FnOnce(&Abilities) -> T) -> T {
    CURRENT.with(|current| look(&current.abilities))
}

/// Returns the kind of the queue under test.
pub(super) fn queued() -> Kind {
    CURRENT.with(|current| current.queued)
}

/// Lets time pass on purpose.
pub(super) async fn rest(time: Duration) {
    tokio::time::sleep(time).await;
    add_rest(time);
}

/// Awaits something that may let time pass on purpose, and counts all of its time as such.
pub(super) async fn resting<T>(call: impl Future<Output = T>) -> T {
    let began = Instant::now();
    let answer = call.await;
    add_rest(began.elapsed());
    answer
}

fn add_rest(time: Duration) {
    CURRENT.with(|current| *current.rested.lock().unwrap() += time);
}

/// Returns the time since the test began.
pub(super) fn elapsed() -> Duration {
    CURRENT.with(|current| current.began.elapsed())
}

/// Runs the test `name` (`group::test`) on a fresh subject; if its store lacks one of the needs,
/// checks instead that the store refuses it.
///
/// Runs a test again if it fails after having been paused for so long that a waiter or an intent
/// may have died meanwhile.
#[doc(hidden)]
pub async fn run<M, S, T>(
    make: impl Fn() -> M,
    name: &str,
    needs: &'static [Need],
    test: impl Fn(Subject) -> T,
) where
    M: Future<Output = S>,
    S: Into<Subject>,
    T: Future<Output = ()> + Send + 'static,
{
    for last in [false, false, false, true] {
        let subject: Subject = make().await.into();
        if let Some(reason) = subject.reason_to_skip(name) {
            return say(&format!("skipped: {name}: {reason}"));
        }
        let abilities = subject.store.abilities().clone();
        // A pause of this length excuses a failure.
        let excuse = abilities.waiter_life.min(abilities.intent_life) * 4 / 5;
        let call: BoxFuture<()> = match needs::lacked(&*subject.store, needs) {
            lacked if lacked.is_empty() => Box::pin(test(subject)),
            lacked => {
                let all: Vec<_> = lacked.iter().map(|need| need.lack()).collect();
                say(&format!("left out: {} {}", abilities.name, all.join(", ")));
                Box::pin(refusals::check(subject, lacked))
            }
        };
        let queued = if name.starts_with("mutex_") { Kind::Mutex } else { Kind::Fair };
        let (began, rested) = (TokioInstant::now(), Mutex::default());
        let current = Arc::new(Current { abilities, queued, began, rested });
        let began = Instant::now();
        let Err(failure) = tokio::spawn(CURRENT.scope(Arc::clone(&current), call)).await else { return };
        let stopped = began.elapsed().saturating_sub(*current.rested.lock().unwrap());
        if last || stopped < excuse {
            std::panic::resume_unwind(failure.into_panic());
        }
    }
}

/// Prints a line into the output of the test.
#[expect(clippy::print_stdout, reason = "the output of a test is its report")]
fn say(line: &str) {
    println!("{line}");
}
