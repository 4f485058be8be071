//! [`Group`]: requests for single keys that are ready together travel as one script call.
//!
//! A call costs the server and the client more than what it does for one key. A request that comes
//! while nothing is under way is sent at once. One that comes later is sent when everything that is
//! ready to run on its thread has run, so that others can join it, and in any case with the next
//! request or answer that finds nothing else under way: it never waits for a time, and no thread
//! that is blocked keeps it.

use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use lock_core::internal::clock::Tick;
use lock_core::internal::eager;
use lock_core::internal::sync::{CachePadded, lock};
use lock_core::store::{StoreError, StoreErrorKind};
use tokio::sync::oneshot;

use super::connection::Ready;
use super::fault::Fault;
use super::node::Node;

/// What all members of a group ask for, each for its own key.
pub(super) trait Step: Sized + Send + Sync + 'static {
    /// Cheap to clone.
    type Request: Clone + Send + Sync;
    type Answer: Send;

    /// So many requests make a call that is sent without waiting for more: the server has work
    /// while this side goes on, does little else meanwhile, and would save little with more.
    const FULL: usize = 16;

    fn timeout(request: &Self::Request) -> Duration;

    /// Whether one call can be for both; else each is in one of its own, with those that are like
    /// it.
    fn alike(_: &Self::Request, _: &Self::Request) -> bool {
        true
    }

    /// Sends the requests as one call, and reports the answer to each. An error is about all of
    /// them.
    fn send(
        node: &Node,
        requests: &[Self::Request],
        ready: Ready,
        answer: impl FnMut(usize, Result<Self::Answer, StoreError>) + Send,
    ) -> impl Future<Output = Result<(), Fault>> + Send;
}

/// Where requests of one kind for one server meet.
pub(super) struct Group<S: Step> {
    pub(super) node: Arc<Node>,
    state: CachePadded<Mutex<State<S>>>,
}

struct State<S: Step> {
    /// Calls that are not answered yet.
    under_way: usize,
    /// Requests that wait for the next call. Somebody has promised to send them.
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

/// What a new member has to do.
enum Role<S: Step> {
    /// See to it that the call is sent.
    First,
    /// Nothing.
    Joined,
    /// Send the call: nobody else fits in, or nothing else is under way.
    Last(Vec<Member<S>>),
}

/// A call that is counted as not answered yet. When the last one ends, whoever waits is sent.
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
            // Boxed, so that members are small.
            Place::Alone(request) => {
                let _under_way = UnderWay(Arc::clone(self));
                let timeout = S::timeout(&request);
                Ok(Box::pin(alone::<S>(node, request, move |now| now + timeout, false)).await?)
            }
            Place::Member { answer, role } => {
                // Sent by tasks of their own: a caller that goes must not take the others with it.
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
            // Whoever has promised to send them may be on a thread that does something else.
            count if count >= S::FULL || state.under_way == 0 => Role::Last(state.take()),
            _ => Role::Joined,
        };
        Place::Member { answer, role }
    }
}

impl<S: Step> State<S> {
    /// All members that somebody still waits for, to be sent by one call.
    fn take(&mut self) -> Vec<Member<S>> {
        let mut members = std::mem::take(&mut self.members);
        // Whoever has gone has not been sent, so nothing of it needs to be undone.
        members.retain(|member| !member.answer.is_closed());
        self.under_way += 1;
        members
    }

    /// Leaves those that are like the first one.
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
    node.address.error(StoreErrorKind::Unanswered, "the task that sends the request is gone")
}

/// Says so to the members when the task that has promised to send them goes with its runtime.
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
    // Whatever is ready to run goes first, and may join.
    tokio::task::yield_now().await;
    let members = promise.group.state().take();
    promise.kept = true;
    send_group(&promise.group, members).await;
}

/// Sends `members`, which have been taken, now if that is possible here.
fn begin<S: Step>(group: &Arc<Group<S>>, members: Vec<Member<S>>) {
    let sending = send_group(group, members);
    let runtime = &group.node.options.runtime;
    if eager::is_inside(runtime) {
        eager::spawn(runtime, sending);
    } else {
        drop(runtime.spawn(sending));
    }
}

/// The call of `members`, which have been taken.
fn send_group<S: Step>(
    group: &Arc<Group<S>>,
    mut members: Vec<Member<S>>,
) -> impl Future<Output = ()> + use<S> {
    let under_way = UnderWay(Arc::clone(group));
    async move {
        let group = &under_way.0;
        let node = &group.node;
        // The engine gives up what is overdue. It must not be sent after that.
        let now = node.options.clock.now();
        for overdue in members.extract_if(.., |member| member.deadline <= now) {
            let error =
                node.address.error(StoreErrorKind::Unreachable, "no time was left to send the request");
            let _ = overdue.answer.send(Err(error));
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
        // Or because one was withdrawn meanwhile.
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
