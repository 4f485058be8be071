//! [`Group`]: requests for single keys that are ready together travel as one script call.
//!
//! A call costs the server and the client more than the work for one key, so requests share calls.
//! A request that arrives while no call is under way is sent at once. A later one waits until all
//! tasks that are ready on its thread have run, so that others can join it. It is sent earlier if
//! the next request or answer finds no other call under way. It never waits for a fixed time, and a
//! blocked thread does not delay it.

use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use lock_core::internal::clock::Tick;
use lock_core::internal::eager;
use lock_core::internal::runtime::is_inside;
use lock_core::internal::sync::{CachePadded, lock};
use lock_core::store::{StoreError, StoreErrorKind};
use tokio::sync::oneshot;

use super::connection::Ready;
use super::fault::Fault;
use super::node::Node;

/// The request of all members of a group, each for its own key.
pub(super) trait Step: Sized + Send + Sync + 'static {
    /// Cheap to clone.
    type Request: Clone + Send + Sync;
    type Answer: Send;

    /// Number of requests that make a call full, so that it is sent at once. The server then works
    /// while the client goes on, and more requests would save little.
    const FULL: usize = 16;

    fn timeout(request: &Self::Request) -> Duration;

    /// Whether both can be in one call. Otherwise each travels with the requests that are like it.
    fn alike(_: &Self::Request, _: &Self::Request) -> bool {
        true
    }

    /// Sends the requests as one call and reports the answer to each. An error concerns all of
    /// them.
    fn send(
        node: &Node,
        requests: &[Self::Request],
        ready: Ready,
        answer: impl FnMut(usize, Result<Self::Answer, StoreError>) + Send,
    ) -> impl Future<Output = Result<(), Fault>> + Send;
}

/// Collects requests of one kind for one server.
pub(super) struct Group<S: Step> {
    pub(super) node: Arc<Node>,
    state: CachePadded<Mutex<State<S>>>,
}

struct State<S: Step> {
    /// Number of unanswered calls.
    under_way: usize,
    /// Requests that wait for the next call, which a [`Promise`] or a call under way will send.
    members: Vec<Member<S>>,
}

struct Member<S: Step> {
    request: S::Request,
    deadline: Tick,
    answer: oneshot::Sender<Result<S::Answer, StoreError>>,
}

enum Place<S: Step> {
    Alone(S::Request),
    Member { answer: oneshot::Receiver<Result<S::Answer, StoreError>>, role: Role<S> },
}

/// Task of a new member.
enum Role<S: Step> {
    /// Ensure that the call is sent.
    First,
    /// Nothing.
    Joined,
    /// Send the call: it is full, or no other call is under way.
    Last(Vec<Member<S>>),
}

/// An unanswered call. When the last one ends, the waiting members are sent.
struct UnderWay<S: Step>(Arc<Group<S>>);

impl<S: Step> Drop for UnderWay<S> {
    fn drop(&mut self) {
        let members = {
            let mut state = self.0.state();
            state.under_way -= 1;
            if state.under_way > 0 || state.members.is_empty() {
                return;
            }
            state.take()
        };
        begin(&self.0, members);
    }
}

impl<S: Step> Group<S> {
    pub(super) fn new(node: &Arc<Node>) -> Arc<Self> {
        let state = State { under_way: 0, members: Vec::new() };
        Arc::new(Self { node: Arc::clone(node), state: CachePadded(Mutex::new(state)) })
    }

    fn state(&self) -> MutexGuard<'_, State<S>> {
        lock(&self.state)
    }

    /// Sends `request`, alone or with others.
    pub(super) async fn call(self: &Arc<Self>, request: S::Request) -> Result<S::Answer, StoreError> {
        let node = &self.node;
        match self.enter(request) {
            // Boxed to keep members small.
            Place::Alone(request) => {
                let _under_way = UnderWay(Arc::clone(self));
                let timeout = S::timeout(&request);
                Ok(Box::pin(alone::<S>(node, request, move |now| now + timeout, false)).await?)
            }
            Place::Member { answer, role } => {
                // Sent by separate tasks: a caller that is dropped must not take the others with
                // it.
                match role {
                    Role::First => {
                        let promise = Promise { group: Arc::clone(self), kept: false };
                        drop(node.options.runtime.spawn(send_members(promise)));
                    }
                    Role::Joined => {}
                    Role::Last(members) => begin(self, members),
                }
                answer.await.unwrap_or_else(|_| Err(gone(node)))
            }
        }
    }

    fn enter(&self, request: S::Request) -> Place<S> {
        let mut state = self.state();
        if self.node.takes_one_by_one() || (state.under_way == 0 && state.members.is_empty()) {
            state.under_way += 1;
            return Place::Alone(request);
        }
        let (sender, answer) = oneshot::channel();
        let deadline = self.node.deadline(S::timeout(&request));
        state.members.push(Member { request, deadline, answer: sender });
        let role = match state.members.len() {
            1 => Role::First,
            // The task with the promise may be queued on a busy thread.
            count if count >= S::FULL || state.under_way == 0 => Role::Last(state.take()),
            _ => Role::Joined,
        };
        Place::Member { answer, role }
    }
}

impl<S: Step> State<S> {
    /// Takes all members whose callers still wait, to be sent by one call.
    fn take(&mut self) -> Vec<Member<S>> {
        let mut members = std::mem::take(&mut self.members);
        // A member whose caller has gone was not sent, so nothing has to be undone.
        members.retain(|member| !member.answer.is_closed());
        self.under_way += 1;
        members
    }

    /// Keeps the members that are like the first one and returns the others.
    fn split(members: &mut Vec<Member<S>>) -> Option<Vec<Member<S>>> {
        let first = members.first()?.request.clone();
        let others: Vec<_> = members.extract_if(.., |member| !S::alike(&first, &member.request)).collect();
        (!others.is_empty()).then_some(others)
    }
}

/// Sends a request by itself.
pub(super) async fn alone<S: Step>(
    node: &Node,
    request: S::Request,
    deadline: impl FnOnce(Tick) -> Tick + Send,
    asking: bool,
) -> Result<S::Answer, Fault> {
    let ready = node.connector.ready_by(deadline, asking).await?;
    let mut result = None;
    S::send(node, &[request], ready, |_, answer| result = Some(answer)).await?;
    Ok(result.unwrap_or_else(|| Err(gone(node)))?)
}

fn gone(node: &Node) -> StoreError {
    node.address.error(StoreErrorKind::Unanswered, "the task that sends the request has ended")
}

/// Fails the members when the task that has promised to send them is dropped with its runtime.
struct Promise<S: Step> {
    group: Arc<Group<S>>,
    kept: bool,
}

impl<S: Step> Drop for Promise<S> {
    fn drop(&mut self) {
        if !self.kept {
            let members = std::mem::take(&mut self.group.state().members);
            drop(members);
        }
    }
}

async fn send_members<S: Step>(mut promise: Promise<S>) {
    // All tasks that are ready run first, and may join.
    tokio::task::yield_now().await;
    let members = promise.group.state().take();
    promise.kept = true;
    send_group(&promise.group, members).await;
}

/// Sends `members`, which have been taken, now if this thread allows it.
fn begin<S: Step>(group: &Arc<Group<S>>, members: Vec<Member<S>>) {
    let sending = send_group(group, members);
    let runtime = &group.node.options.runtime;
    if is_inside(runtime) {
        eager::spawn(runtime, sending);
    } else {
        drop(runtime.spawn(sending));
    }
}

/// Returns the call for `members`, which have been taken.
fn send_group<S: Step>(
    group: &Arc<Group<S>>,
    mut members: Vec<Member<S>>,
) -> impl Future<Output = ()> + use<S> {
    let under_way = UnderWay(Arc::clone(group));
    async move {
        let group = &under_way.0;
        let node = &group.node;
        // The engine gives up overdue requests, so they must not be sent afterwards.
        let now = node.options.clock.now();
        for overdue in members.extract_if(.., |member| member.deadline <= now) {
            let _ = overdue.answer.send(Err(node.address.no_time()));
        }
        if let Some(others) = State::split(&mut members) {
            group.state().under_way += 1;
            begin(group, others);
        }
        let Some(deadline) = members.iter().map(|member| member.deadline).min() else { return };
        let (requests, answers): (Vec<_>, Vec<_>) =
            members.into_iter().map(|member| (member.request, member.answer)).unzip();
        let mut results: Vec<_> = requests.iter().map(|_| None).collect();
        let sent = async {
            let ready = node.connector.ready_by(|_| deadline, false).await?;
            let answer = |index, result| {
                if let Some(place) = results.get_mut(index) {
                    *place = Some(result);
                }
            };
            S::send(node, &requests, ready, answer).await
        }
        .await;
        let mut unanswered = Vec::new();
        for ((request, answer), result) in requests.into_iter().zip(answers).zip(results) {
            match result {
                Some(result) => drop(answer.send(result)),
                None => unanswered.push((request, answer)),
            }
        }
        let Err(fault) = sent else { return };
        // `TooLate` may also mean that one of the requests was withdrawn meanwhile.
        let too_late = fault.error.kind() == StoreErrorKind::TooLate;
        let each_alone = unanswered.len() > 1 && (too_late || node.takes_each(&fault));
        let error = fault.error;
        for (request, answer) in unanswered {
            if each_alone {
                let node = Arc::clone(node);
                let runtime = node.options.runtime.clone();
                drop(runtime.spawn(async move {
                    let result = alone::<S>(&node, request, |_| deadline, false).await;
                    let _ = answer.send(result.map_err(StoreError::from));
                }));
            } else {
                let _ = answer.send(Err(error.clone()));
            }
        }
    }
}
