//! Runs one test on a fresh subject, with what its store can do at hand.

use std::io::Write;
use std::sync::Mutex;
use std::time::Instant;

use tokio::time::Instant as TokioInstant;

use super::*;

/// The store and the time of the running test.
struct Current {
    abilities: Abilities,
    /// The kind of the queue under test.
    queued: Kind,
    /// Number of times that the test has failed before.
    failed: u32,
    began: TokioInstant,
    /// Time that the test has let pass on purpose.
    rested: Mutex<Duration>,
    short: Mutex<Short>,
}

/// How long leases that are meant to end have lasted while the test was at work.
#[derive(Debug, Default)]
struct Short {
    /// When the first of them began, since the test rested last.
    began: Option<Instant>,
    longest: Duration,
}

impl Short {
    /// Records that the test rests now, or is over. Returns the longest.
    fn end(&mut self) -> Duration {
        let lasted = self.began.take().map_or(Duration::ZERO, |began| began.elapsed());
        self.longest = self.longest.max(lasted);
        self.longest
    }
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

/// Says that a lease begins that is meant to end, and returns how often the test has failed before.
pub(super) fn begins_short() -> u32 {
    CURRENT.with(|current| {
        current.short.lock().unwrap().began.get_or_insert_with(Instant::now);
        current.failed
    })
}

/// Lets time pass on purpose.
pub(super) async fn rest(time: Duration) {
    begin_rest();
    tokio::time::sleep(time).await;
    add_rest(time);
}

/// Awaits something that may let time pass on purpose, and counts all of its time as such.
pub(super) async fn resting<T>(call: impl Future<Output = T>) -> T {
    begin_rest();
    let began = Instant::now();
    let answer = call.await;
    add_rest(began.elapsed());
    answer
}

fn begin_rest() {
    CURRENT.with(|current| current.short.lock().unwrap().end());
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
/// Runs a test again if it fails after having been paused for so long that a waiter, an intent or a
/// short lease may have ended meanwhile. Short leases are then longer.
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
    for failed in 0.. {
        let subject: Subject = make().await.into();
        if let Some(reason) = subject.reason_to_skip(name) {
            return say(&format!("skipped: {name}: {reason}"));
        }
        let abilities = subject.store.abilities().clone();
        let life = abilities.waiter_life.min(abilities.intent_life);
        let call: BoxFuture<()> = match needs::lacked(&*subject.store, needs) {
            lacked if lacked.is_empty() => Box::pin(test(subject)),
            lacked => {
                let all: Vec<_> = lacked.iter().map(|need| need.lack()).collect();
                say(&format!("left out: {} {}", abilities.name, all.join(", ")));
                Box::pin(refusals::check(subject, lacked))
            }
        };
        let queued = if name.starts_with("mutex_") { Kind::Mutex } else { Kind::Fair };
        let current = Arc::new(Current {
            abilities,
            queued,
            failed,
            began: TokioInstant::now(),
            rested: Mutex::default(),
            short: Mutex::default(),
        });
        let began = Instant::now();
        let Err(failure) = tokio::spawn(CURRENT.scope(Arc::clone(&current), call)).await else { return };
        let stopped = began.elapsed().saturating_sub(*current.rested.lock().unwrap());
        let lasted = current.short.lock().unwrap().end();
        let lease = CURRENT.sync_scope(current, short);
        // Pauses of these lengths excuse a failure.
        let is_excused = stopped >= life * 4 / 5 || lasted >= lease * 4 / 5;
        if failed == 3 || !is_excused {
            std::panic::resume_unwind(failure.into_panic());
        }
        // Written past the harness, which hides what a passing test prints.
        let _ = writeln!(
            std::io::stderr(),
            "again: {name}: at work for {stopped:?}, and for {lasted:?} during leases that have to end"
        );
    }
}

/// Prints a line into the output of the test.
#[expect(clippy::print_stdout, reason = "the output of a test is its report")]
fn say(line: &str) {
    println!("{line}");
}
