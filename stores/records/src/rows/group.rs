//! [`travel`]: steps of this process on one row, which travel together.
//!
//! A thousand waiters that write a row one by one would overtake each other all the time. So one
//! step on a row is under way at a time; those that come meanwhile are made together, in the order
//! in which they came. Renewals and withdrawals have groups of their own.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use futures_util::FutureExt as _;
use futures_util::future::{BoxFuture, Shared, WeakShared};
use lock_core::internal::sync::{Mutex, lock};
use lock_core::store::{Few, ServerTime, StoreError, StoreErrorKind};
use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::{LONGEST, Rows, spawned};
use crate::listeners::Heard;
use crate::record::Name;
use crate::store::{Access, Change, Changed, Work};

/// Maximum number of steps that are made together.
const MOST: usize = 256;

/// A row, and what is done there. Renewals have connections of their own, and withdrawals wait for
/// the steps that are under way.
type Place = (Name, Access);

/// The rows that have a step under way.
#[derive(Default)]
pub struct Groups(Mutex<HashMap<Place, Group>>);

impl fmt::Debug for Groups {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Groups").finish_non_exhaustive()
    }
}

/// A database on which steps travel together.
pub trait Grouped: Send + Sync + Sized + 'static {
    /// Returns the rows that have a step under way.
    fn groups(&self) -> &Groups;

    /// Returns what this process knows of the database.
    fn rows(&self) -> &Rows;

    /// Returns itself, for tasks that go on with the steps of others; `None` while it is dropped.
    fn me(&self) -> Option<Arc<Self>>;

    /// Makes a call in a task: its caller may not poll it, and keep rows locked meanwhile.
    fn in_task<T, F>(
        &self,
        call: impl FnOnce(Arc<Self>) -> F + Send,
    ) -> impl Future<Output = Result<T, StoreError>> + Send
    where
        T: Send + 'static,
        F: Future<Output = Result<T, StoreError>> + Send + 'static,
    {
        let me =
            self.me().ok_or_else(|| self.rows().error(StoreErrorKind::NotReady, "the store was dropped"));
        async move { spawned(call(me?)).await }
    }

    /// Makes a step by itself.
    fn make<T, F>(
        &self,
        change: Change,
        step: F,
    ) -> impl Future<Output = Result<Changed<T>, StoreError>> + Send
    where
        T: Send,
        F: FnMut(&mut Work<'_>) -> T + Send;
}

/// Makes a step on one row, together with those of others that come while one is under way there.
///
/// # Errors
///
/// As for [`RecordStore::change`](crate::RecordStore::change).
pub async fn travel<S, T, F>(
    store: Arc<S>,
    name: &Name,
    change: Change,
    step: F,
) -> Result<Changed<T>, StoreError>
where
    S: Grouped,
    T: Send + 'static,
    F: FnMut(&mut Work<'_>) -> T + Send + 'static,
{
    let timeout = change.timeout;
    match Groups::turn(&store, name, change, step) {
        Turn::Now(lead, change, step) => lead.make_one(change, step).await,
        Turn::Later(mut told, begun) => match tokio::time::timeout(timeout, &mut told).await {
            Ok(told) => told.unwrap_or_else(|_| Err(given_up())),
            Err(_) => {
                drop(told);
                Err(store.rows().error(over(&begun), format_args!("no answer within {timeout:?}")))
            }
        },
    }
}

/// The steps on one row.
#[derive(Default)]
struct Group {
    /// Those that wait for the one that is under way.
    waiting: Vec<Box<dyn Member>>,
    /// The step under way, for as long as nobody but its caller polls it.
    first: Option<WeakShared<BoxFuture<'static, ()>>>,
}

impl Group {
    /// Returns the step under way if others wait for it, so that a task has to poll it, too: its
    /// caller may not.
    fn orphan(&mut self) -> Option<Shared<BoxFuture<'static, ()>>> {
        if self.waiting.is_empty() { None } else { self.first.take()?.upgrade() }
    }
}

/// A step that waits for its turn.
trait Member: Send {
    fn change(&self) -> &Change;
    fn deadline(&self) -> Instant;
    /// Says that the step begins; `false` if its caller has gone.
    fn begin(&self) -> bool;
    /// Runs the step, and keeps its answer.
    fn run(&mut self, work: &mut Work<'_>);
    /// Tells the caller.
    fn tell(self: Box<Self>, made: Result<(ServerTime, Heard), StoreError>);
}

struct Seat<T, F> {
    change: Change,
    deadline: Instant,
    step: F,
    answer: Option<T>,
    /// Whether the last run had events.
    rang: bool,
    begun: Arc<AtomicBool>,
    caller: oneshot::Sender<Result<Changed<T>, StoreError>>,
}

impl<T, F> Member for Seat<T, F>
where
    T: Send,
    F: FnMut(&mut Work<'_>) -> T + Send,
{
    fn change(&self) -> &Change {
        &self.change
    }

    fn deadline(&self) -> Instant {
        self.deadline
    }

    fn begin(&self) -> bool {
        self.begun.swap(true, Ordering::AcqRel);
        !self.caller.is_closed()
    }

    fn run(&mut self, work: &mut Work<'_>) {
        let before = work.events.len();
        self.answer = Some((self.step)(work));
        self.rang = work.events.len() > before;
    }

    fn tell(self: Box<Self>, made: Result<(ServerTime, Heard), StoreError>) {
        let Self { answer, rang, caller, .. } = *self;
        let changed = |(now, heard): (ServerTime, Heard)| {
            answer.map(|answer| Changed { answer, now, heard: Heard(heard.0 && rang) })
        };
        // The caller may have gone.
        let _ = made.map(changed).transpose().map(|changed| caller.send(changed));
    }
}

/// The right to make steps on a row. When it ends, those that wait are made.
struct Lead<S: Grouped> {
    store: Arc<S>,
    place: Place,
    runtime: Handle,
}

impl<S: Grouped> Drop for Lead<S> {
    fn drop(&mut self) {
        let mut groups = lock(&self.store.groups().0);
        // Taken out here: a runtime that has ended drops the task at once, and with it the next
        // lead.
        let waiting = groups.get_mut(&self.place).map(std::mem::take).unwrap_or_default().waiting;
        if waiting.is_empty() {
            groups.remove(&self.place);
            return;
        }
        drop(groups);
        let (store, place) = (Arc::clone(&self.store), self.place.clone());
        let lead = Self { store, place, runtime: self.runtime.clone() };
        self.runtime.spawn(lead.make_all(waiting));
    }
}

/// How a step is made.
enum Turn<S: Grouped, T, F> {
    /// At once, by its caller.
    Now(Lead<S>, Change, F),
    /// Together with others.
    Later(oneshot::Receiver<Result<Changed<T>, StoreError>>, Arc<AtomicBool>),
}

impl Groups {
    /// Whether no row has a step under way.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        lock(&self.0).is_empty()
    }

    /// Takes a turn for a step on one row.
    fn turn<S, T, F>(store: &Arc<S>, name: &Name, change: Change, step: F) -> Turn<S, T, F>
    where
        S: Grouped,
        T: Send + 'static,
        F: FnMut(&mut Work<'_>) -> T + Send + 'static,
    {
        let place = (name.clone(), change.access);
        let mut groups = lock(&store.groups().0);
        let Some(group) = groups.get_mut(&place) else {
            groups.insert(place.clone(), Group::default());
            drop(groups);
            let lead = Lead { store: Arc::clone(store), place, runtime: Handle::current() };
            return Turn::Now(lead, change, step);
        };
        let (caller, told) = oneshot::channel();
        let begun = Arc::new(AtomicBool::new(false));
        let deadline = Instant::now() + change.timeout.min(LONGEST);
        let (answer, rang) = (None, false);
        group.waiting.push(Box::new(Seat {
            change,
            deadline,
            step,
            answer,
            rang,
            begun: Arc::clone(&begun),
            caller,
        }));
        let orphan = group.orphan();
        drop(groups);
        if let Some(step) = orphan {
            Handle::current().spawn(step);
        }
        Turn::Later(told, begun)
    }
}

impl<S: Grouped> Lead<S> {
    /// Makes a step. Its caller polls it, and a task too once others wait: the caller may stop.
    async fn make_one<T, F>(self, change: Change, step: F) -> Result<Changed<T>, StoreError>
    where
        T: Send + 'static,
        F: FnMut(&mut Work<'_>) -> T + Send + 'static,
    {
        let (store, place, runtime) = (Arc::clone(&self.store), self.place.clone(), self.runtime.clone());
        let answer = Arc::new(Mutex::new(None));
        let told = Arc::clone(&answer);
        let step = async move {
            let lead = self;
            let made = lead.store.make(change, step).await;
            *lock(&told) = Some(made);
        };
        let step = step.boxed().shared();
        let orphan = {
            let mut groups = lock(&store.groups().0);
            groups.get_mut(&place).and_then(|group| {
                group.first = step.downgrade();
                group.orphan()
            })
        };
        if let Some(step) = orphan {
            runtime.spawn(step);
        }
        step.await;
        let made = lock(&answer).take();
        made.unwrap_or_else(|| Err(given_up()))
    }

    async fn make_all(self, mut waiting: Vec<Box<dyn Member>>) {
        while !waiting.is_empty() {
            let rest = waiting.split_off(waiting.len().min(MOST));
            self.make(waiting.into_iter().filter_map(begun).collect()).await;
            waiting = rest;
        }
    }

    /// Makes these steps together.
    async fn make(&self, members: Vec<Box<dyn Member>>) {
        let Some(first) = members.first().map(|member| member.change().clone()) else { return };
        let deadline = members.iter().map(|member| member.deadline()).max();
        let change = Change {
            names: Few::one(self.place.0.clone()),
            // After the first of these, its answer is another one, and all are made again.
            latest: members.iter().filter_map(|member| member.change().latest).min(),
            timeout: deadline.unwrap_or_else(Instant::now).saturating_duration_since(Instant::now()),
            ..first
        };
        let members = Arc::new(Mutex::new(members));
        let all = Arc::clone(&members);
        let step = move |work: &mut Work<'_>| lock(&all).iter_mut().for_each(|member| member.run(work));
        let made = self.store.make(change, step).await;
        let made = made.map(|Changed { now, heard, .. }| (now, heard));
        let members = std::mem::take(&mut *lock(&members));
        // One of them may have made the record too long.
        let is_full = made.as_ref().is_err_and(|error| error.kind() == StoreErrorKind::TooManyWaiters);
        if is_full && members.len() > 1 {
            for member in members {
                // Those before it may have taken long.
                Box::pin(self.make(begun(member).into_iter().collect())).await;
            }
            return;
        }
        members.into_iter().for_each(|member| member.tell(made.clone()));
    }
}

/// Begins a step; `None` if nobody waits for it any more.
fn begun(member: Box<dyn Member>) -> Option<Box<dyn Member>> {
    if member.deadline() > Instant::now() {
        return Some(member).filter(|member| member.begin());
    }
    let over = StoreError::new(StoreErrorKind::NotReady, "the time was over before the step began");
    member.tell(Err(over));
    None
}

/// Returns the error of a step that has panicked, or whose runtime has ended.
pub(super) fn given_up() -> StoreError {
    StoreError::new(StoreErrorKind::Unanswered, "the step was given up")
}

/// Returns the kind of error of a caller whose time is over, and which no longer waits.
fn over(begun: &AtomicBool) -> StoreErrorKind {
    match begun.swap(true, Ordering::AcqRel) {
        true => StoreErrorKind::Unanswered,
        false => StoreErrorKind::NotReady,
    }
}
