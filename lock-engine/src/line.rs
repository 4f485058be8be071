//! [`Lines`]: who waits in this process for permits, by semaphore: first in, first out, and one at a time asks the store.
//!
//! A line has a task, its contender, which gives the first of the line to the engine and awaits how that ends, then the
//! next. The wish that is with the engine waits, tries again and ends as that of a lock does. Permits go to their caller
//! through a channel: of whoever has gone, they are released, and the line does not wait for who is not polled.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use lock_core::internal::clock::Tick;
use lock_core::internal::sync::atomic::Ordering;
use lock_core::internal::sync::{Mutex, lock};
use lock_core::internal::time;
use lock_core::store::{SemaphoreStore, StoreError, StoreErrorKind};
use lock_core::{LockKey, Replication};
use tokio::sync::oneshot;

use crate::Engine;
use crate::acquire::Acquire;
use crate::admission::Admission;
use crate::failure::Failure;
use crate::hold::Lease;
use crate::metrics::Label;
use crate::places::Counted;
use crate::registry::Spec;
use crate::request::{Request, Wait};

/// A wish for permits.
#[derive(Clone, Debug)]
pub struct Wish {
    pub name: LockKey,
    pub permits: u32,
    pub wait: Wait,
    pub lease: Lease,
    pub label: Label,
    pub asked: Tick,
}

type Answer = Result<Admission, Failure>;

/// Somebody who stands in line.
struct Waiter {
    wish: Wish,
    answer: oneshot::Sender<Answer>,
    counted: Counted,
}

/// Those in line, by number. The engine gives the numbers out, so no two lines have the same one:
/// a caller that was served may leave when the next line has formed.
type Line = BTreeMap<u64, Waiter>;

/// All lines of a manager. There is one for each semaphore whose contender runs.
pub struct Lines {
    pub engine: Arc<Engine>,
    pub store: Arc<dyn SemaphoreStore>,
    lines: Mutex<HashMap<LockKey, Line>>,
}

impl Lines {
    pub fn new(engine: Arc<Engine>, store: Arc<dyn SemaphoreStore>) -> Self {
        Self { engine, store, lines: Mutex::default() }
    }

    /// Waits for permits, or tries once, which overtakes those in line as it does those of other processes.
    pub async fn acquire(self: Arc<Self>, wish: Wish) -> Answer {
        if wish.wait == Wait::No {
            return Acquire::new(Box::new(self.request(&wish))).await.map_err(|(_, failure)| failure);
        }
        loop {
            let (place, mut answer) = self.stand_in_line(&wish)?;
            let guard = self.answered(&wish, &place, &mut answer).await?;
            // It may have lain there while nobody polled us; then it was for nothing.
            if !guard.grant().is_lost() {
                return Ok(guard);
            }
        }
    }

    /// Awaits the answer, while it is in line as long as the wish allows: the engine ends it by its own clock.
    async fn answered(&self, wish: &Wish, place: &Place, answer: &mut oneshot::Receiver<Answer>) -> Answer {
        let engine = &self.engine;
        let unheard = || Err(self.unheard());
        if let Wait::For(wait) = wish.wait {
            loop {
                let left = (wish.asked + wait).since(engine.clock.now());
                if left.is_zero() {
                    if place.leave() {
                        return Err(self.timed_out(wish));
                    }
                    break;
                }
                if let Some(answered) = time::timeout(&engine.runtime, left, &mut *answer).await {
                    return answered.unwrap_or_else(|_| unheard());
                }
                if engine.runtime_is_gone() {
                    break;
                }
            }
        }
        answer.await.unwrap_or_else(|_| unheard())
    }

    /// Makes the failure of a wish whose contender is gone without an answer.
    fn unheard(&self) -> Failure {
        if self.engine.runtime_is_gone() || self.engine.shut_down.load(Ordering::Acquire) {
            return Failure::ShutDown;
        }
        let cause = "the task that asks for permits panicked";
        Failure::Store(StoreError::new(StoreErrorKind::Unanswered, cause))
    }

    fn timed_out(&self, wish: &Wish) -> Failure {
        let engine = &self.engine;
        let lanes = engine.registry.find_all(&wish.name);
        let last_error =
            lanes.iter().find_map(|lane| lock(&lane.machine).pace.last_error_for(Replication::NONE));
        let waited = engine.clock.now().since(wish.asked);
        Failure::wait_over(last_error, waited, self.taken_for(wish))
    }

    /// For how long permits stay taken, as the store last told whoever is with the engine.
    fn taken_for(&self, wish: &Wish) -> Option<Duration> {
        self.engine.registry.taken_in_own(&wish.name, self.engine.clock.now())
    }

    fn request(&self, wish: &Wish) -> Request {
        Request {
            engine: Arc::clone(&self.engine),
            key: wish.name.clone(),
            spec: Spec::permits(wish.permits),
            wait: wish.wait,
            lease: wish.lease,
            max_hold: None,
            min_hold: Duration::ZERO,
            replication: Replication::NONE,
            label: wish.label.clone(),
            max_waiters: usize::MAX,
            asked: Some(wish.asked),
        }
    }

    fn stand_in_line(self: &Arc<Self>, wish: &Wish) -> Result<(Place, oneshot::Receiver<Answer>), Failure> {
        let settings = &self.engine.settings;
        let full = |waiting, cap| {
            let remaining = self.taken_for(wish);
            Failure::TooManyWaiters { waiting, cap, remaining }
        };
        let (counted, waiting) = Counted::new(&self.engine);
        if waiting >= settings.max_waiters {
            return Err(full(waiting, "max_waiters"));
        }
        let (answer, answered) = oneshot::channel();
        let waiter = Waiter { wish: wish.clone(), answer, counted };
        let mut lines = lock(&self.lines);
        let mut first = None;
        let mut id = 0;
        match lines.get_mut(&wish.name) {
            Some(line) => {
                // One more is with the engine.
                let waiting = line.len() + 1;
                if waiting >= settings.max_waiters_per_key {
                    drop(lines);
                    return Err(full(waiting, "max_waiters_per_key"));
                }
                id = self.engine.new_id();
                line.insert(id, waiter);
            }
            None => {
                lines.insert(wish.name.clone(), Line::default());
                first = Some(waiter);
            }
        }
        drop(lines);
        let place = Place { lines: Arc::clone(self), name: wish.name.clone(), id };
        if let Some(first) = first {
            let contender = Contender { lines: Arc::clone(self), name: wish.name.clone(), ended: false };
            self.engine.spawn(contender.run(first));
        }
        Ok((place, answered))
    }
}

/// A place in line, given up when it is dropped.
struct Place {
    lines: Arc<Lines>,
    name: LockKey,
    /// 0 for who was never in line, because there was none.
    id: u64,
}

impl Place {
    /// `false` when it is with the engine, or answered.
    fn leave(&self) -> bool {
        let mut lines = lock(&self.lines.lines);
        let waiter = lines.get_mut(&self.name).and_then(|line| line.remove(&self.id));
        drop(lines);
        waiter.is_some()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.leave();
    }
}

/// The task that asks for the first of a line.
struct Contender {
    lines: Arc<Lines>,
    name: LockKey,
    ended: bool,
}

impl Contender {
    async fn run(mut self, first: Waiter) {
        let mut next = Some(first);
        while let Some(Waiter { wish, mut answer, counted }) = next {
            let acquire = Acquire::counted(self.lines.request(&wish), counted);
            let answered = tokio::select! {
                biased; // so that a run can be made again
                answered = acquire => Some(answered.map_err(|(_, failure)| failure)),
                () = answer.closed() => None,
            };
            if let Some(answered) = answered {
                // To whoever has gone: dropped here, and so released.
                drop(answer.send(answered));
            }
            next = self.next();
        }
        self.ended = true;
    }

    /// The next in line; without one, there is no line any more.
    fn next(&self) -> Option<Waiter> {
        let mut lines = lock(&self.lines.lines);
        let next = lines.get_mut(&self.name)?.pop_first();
        if next.is_none() {
            lines.remove(&self.name);
        }
        next.map(|(_, waiter)| waiter)
    }
}

impl Drop for Contender {
    /// Its runtime is gone, or something panicked: nobody is to wait for it.
    fn drop(&mut self) {
        if !self.ended {
            let line = lock(&self.lines.lines).remove(&self.name);
            drop(line);
        }
    }
}
