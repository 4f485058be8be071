//! [`Connector`]: the one connection for commands, made on demand and replaced when in doubt.
//!
//! The client library never reconnects a multiplexed connection, and keeps using a socket that
//! swallows everything. So the connector reconnects itself, and gives a connection up
//!
//! - when it breaks;
//! - when a call on it times out and no answer at all was heard on it since that call was sent;
//! - when the server says that it is a replica: its address may lead to the new primary by now;
//! - when the server rejects the login and the next login may be another.
//!
//! Calls under way on a connection that was given up still get their answers if these arrive.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use lock_core::internal::clock::Tick;
use lock_core::internal::clock::rounded;
use lock_core::internal::sync::{CachePadded, lock};
use lock_core::store::kit::Backoff;
use lock_core::store::kit::ServerClock;
use lock_core::store::{StoreError, StoreErrorKind};
use redis::aio::{MultiplexedConnection, SendError};
use redis::{Cmd, Pipeline, PushInfo, PushKind, ServerError, Value};
use tokio::runtime::Handle;
use tokio::sync::{OnceCell, watch};
use tokio::task::AbortHandle;

use super::classify::is_replica;
use super::dialer::Dialer;
use super::fault::{Fault, Redirect, Several};
use super::reply;
use super::script::Invocation;
use super::session::Session;
use crate::trace::TARGET;

/// A connection in use.
pub(super) struct Link {
    connection: MultiplexedConnection,
    dead: Arc<AtomicBool>,
    /// Number of answers heard on it.
    heard: AtomicU64,
    /// Identifies the run of the server, once it has been asked.
    run_id: OnceCell<Option<String>>,
    session: Arc<Session>,
}

/// How a step is sent.
#[derive(Clone, Copy, Debug)]
pub(super) struct At {
    /// Approximate limit within which the step resolves.
    pub(super) timeout: Duration,
    /// The server is only importing the keys' slot: it serves the keys after ASKING.
    pub(super) asking: bool,
}

impl At {
    /// As usual, without ASKING.
    pub(super) fn once(timeout: Duration) -> Self {
        Self { timeout, asking: false }
    }
}

/// A connection for a call, with the time, which is read once for everything in the call.
#[derive(Clone)]
pub(super) struct Ready {
    link: Arc<Link>,
    pub(super) now: Tick,
    /// When the call must have ended.
    deadline: Tick,
    /// See [`At::asking`].
    asking: bool,
}

impl Ready {
    /// Returns the time that the call has left.
    pub(super) fn left(&self) -> Duration {
        self.deadline.since(self.now)
    }

    pub(super) fn session(&self) -> &Arc<Session> {
        &self.link.session
    }

    /// Whether the connection must not be used any more: it broke, or another server took over.
    pub(super) fn is_over(&self) -> bool {
        self.link.dead.load(Ordering::Acquire)
    }
}

type Outcome = Result<Arc<Link>, StoreError>;

enum Phase {
    Idle,
    Connecting { outcome: watch::Receiver<Option<Outcome>>, task: AbortHandle },
    Ready(Arc<Link>),
}

struct State {
    phase: Phase,
    /// Failed attempts since the last connection.
    failed: Option<Failed>,
}

struct Failed {
    error: StoreError,
    backoff: Backoff,
    /// Earliest time of the next attempt.
    again: Tick,
}

pub(super) struct Connector {
    dialer: Dialer,
    runtime: Handle,
    server_clock: Arc<ServerClock>,
    state: CachePadded<Mutex<State>>,
    weak: Weak<Self>,
}

impl fmt::Debug for Connector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connector").field("address", &self.dialer.address).finish_non_exhaustive()
    }
}

impl Drop for Connector {
    fn drop(&mut self) {
        let state = self.state.0.get_mut().unwrap_or_else(PoisonError::into_inner);
        if let Phase::Connecting { task, .. } = &state.phase {
            task.abort();
        }
    }
}

impl Connector {
    pub(super) fn new(dialer: Dialer, runtime: Handle, server_clock: Arc<ServerClock>) -> Arc<Self> {
        let state = State { phase: Phase::Idle, failed: None };
        Arc::new_cyclic(|weak| Self {
            dialer,
            runtime,
            server_clock,
            state: CachePadded(Mutex::new(state)),
            weak: weak.clone(),
        })
    }

    pub(super) fn dialer(&self) -> &Dialer {
        &self.dialer
    }

    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        lock(&self.state)
    }

    fn error(&self, kind: StoreErrorKind, what: &str) -> StoreError {
        self.dialer.address.error(kind, what)
    }

    /// Returns the connection, made now if there is none, and the time. All callers share one
    /// attempt. Fails with the cause of the failed attempt; nothing was executed then.
    pub(super) async fn ready(&self, at: At) -> Result<Ready, StoreError> {
        self.ready_by(|now| now + at.timeout, at.asking).await
    }

    /// Does the same as [`ready`](Self::ready) for a call with this deadline.
    pub(super) async fn ready_by(
        &self,
        deadline: impl FnOnce(Tick) -> Tick,
        asking: bool,
    ) -> Result<Ready, StoreError> {
        let now = self.dialer.clock.now();
        let deadline = deadline(now);
        let outcome = {
            let mut state = self.state();
            match &state.phase {
                Phase::Ready(link) if !link.dead.load(Ordering::Acquire) => {
                    return Ok(Ready { link: Arc::clone(link), now, deadline, asking });
                }
                Phase::Connecting { outcome, .. } => outcome.clone(),
                Phase::Ready(_) | Phase::Idle => self.start(&mut state),
            }
        };
        // Boxed to keep calls small: nearly all of them find a connection.
        let link = Box::pin(self.connected(outcome, deadline)).await?;
        Ok(Ready { link, now: self.dialer.clock.now(), deadline, asking })
    }

    async fn connected(
        &self,
        mut outcome: watch::Receiver<Option<Outcome>>,
        deadline: Tick,
    ) -> Result<Arc<Link>, StoreError> {
        let left = deadline.since(self.dialer.clock.now());
        match tokio::time::timeout(left, outcome.wait_for(Option::is_some)).await {
            Ok(Ok(outcome)) => match &*outcome {
                Some(outcome) => outcome.clone(),
                None => Err(self.error(StoreErrorKind::Unreachable, "no connection")),
            },
            Ok(Err(_)) => {
                // The next call starts anew: the task may have panicked, in a TLS library for
                // example.
                let mut state = self.state();
                if matches!(&state.phase, Phase::Connecting { task, .. } if task.is_finished()) {
                    state.phase = Phase::Idle;
                }
                let what = "no connection: the connecting task panicked, or its runtime has shut down";
                Err(self.error(StoreErrorKind::Unreachable, what))
            }
            // The last attempt's error says more than that there was no time for another attempt.
            Err(_) => {
                let failed = self.state().failed.as_ref().map(|failed| failed.error.to_string());
                Err(match failed {
                    Some(why) => StoreError::new(StoreErrorKind::Unreachable, why),
                    None => self.error(
                        StoreErrorKind::Unreachable,
                        &format!("no connection within {:?}", rounded(left)),
                    ),
                })
            }
        }
    }

    fn start(&self, state: &mut State) -> watch::Receiver<Option<Outcome>> {
        let (sender, outcome) = watch::channel(None);
        let (dialer, server_clock) = (self.dialer.clone(), Arc::clone(&self.server_clock));
        let connector = self.weak.clone();
        let again = state.failed.as_ref().map(|failed| failed.again);
        let pause = again.map_or(Duration::ZERO, |again| again.since(dialer.clock.now()));
        let task = self.runtime.spawn(async move {
            if !pause.is_zero() {
                tokio::time::sleep(pause).await;
            }
            let result = connect(&dialer, &server_clock).await;
            if let Some(connector) = connector.upgrade() {
                connector.settle(&result);
            }
            let _ = sender.send(Some(result));
        });
        state.phase = Phase::Connecting { outcome: outcome.clone(), task: task.abort_handle() };
        outcome
    }

    fn settle(&self, result: &Outcome) {
        let mut state = self.state();
        match result {
            Ok(link) => {
                state.failed = None;
                state.phase = Phase::Ready(Arc::clone(link));
            }
            Err(error) => {
                let failed = state.failed.take();
                let mut backoff = failed.map_or_else(Backoff::default, |failed| failed.backoff);
                let again = self.dialer.clock.now() + backoff.next_pause();
                state.failed = Some(Failed { error: error.clone(), backoff, again });
                state.phase = Phase::Idle;
            }
        }
    }

    /// Stops handing out `link`.
    fn give_up(&self, link: &Arc<Link>) {
        link.dead.store(true, Ordering::Release);
        let mut state = self.state();
        if matches!(&state.phase, Phase::Ready(current) if Arc::ptr_eq(current, link)) {
            state.phase = Phase::Idle;
        }
    }

    /// Returns the error for an error answer, which may be a part of the whole answer.
    pub(super) fn refused(&self, ready: &Ready, error: &ServerError) -> StoreError {
        if is_replica(error) || self.dialer.address.is_logged_out(error.code()) {
            self.give_up(&ready.link);
        }
        self.dialer.address.refused(error)
    }

    /// Returns the error for an error answer, and whether another server or other keys may help.
    pub(super) fn fault(&self, ready: &Ready, error: &ServerError) -> Fault {
        let (redirect, several) = (Redirect::read(error), Several::read(error));
        Fault { error: self.refused(ready, error), redirect, several }
    }

    /// Sends one command and waits for its answer. An error answer becomes an `Err`.
    pub(super) async fn call(&self, ready: &Ready, command: &Cmd) -> Result<Value, CallError> {
        let mut connection = ready.link.connection.clone();
        let answer = async {
            if ready.asking {
                return Box::pin(ask(&mut connection, command)).await;
            }
            connection.send_packed_command(command).await
        };
        match self.answered(ready, answer).await.map_err(|error| CallError::Other(error.into()))? {
            Value::ServerError(error) if error.code() == "NOSCRIPT" => Err(CallError::NoScript),
            Value::ServerError(error) => Err(CallError::Other(self.fault(ready, &error))),
            value => Ok(value),
        }
    }

    /// Does the same for a command that the server may refuse for good, for lack of a right for
    /// example. Returns `None` then.
    pub(super) async fn call_if_allowed(&self, ready: &Ready, command: &Cmd) -> Result<Option<Value>, Fault> {
        match self.call(ready, command).await.map_err(Fault::from) {
            Ok(value) => Ok(Some(value)),
            Err(fault) if fault.error.is_transient() => Err(fault),
            Err(_) => Ok(None),
        }
    }

    /// Sends commands one after the other and waits for all answers, which may be errors.
    pub(super) async fn call_each(
        &self,
        ready: &Ready,
        commands: &Pipeline,
    ) -> Result<Vec<Value>, StoreError> {
        let mut connection = ready.link.connection.clone();
        let answers = connection.send_packed_commands(commands, 0, commands.len());
        self.answered(ready, answers).await
    }

    /// Waits for an answer. If it does not come in time, nor any other, the connection is given up.
    async fn answered<T>(
        &self,
        ready: &Ready,
        answer: impl Future<Output = redis::RedisResult<T>>,
    ) -> Result<T, StoreError> {
        let link = &ready.link;
        let left = ready.left();
        if left.is_zero() {
            return Err(self.dialer.address.no_time());
        }
        let heard_before = link.heard.load(Ordering::Acquire);
        match tokio::time::timeout(left, answer).await {
            Ok(Ok(answer)) => {
                link.heard.fetch_add(1, Ordering::AcqRel);
                Ok(answer)
            }
            Ok(Err(error)) => {
                self.give_up(link);
                Err(self.dialer.address.broken(&error))
            }
            Err(_) => {
                if link.heard.load(Ordering::Acquire) == heard_before {
                    self.give_up(link);
                }
                Err(self.error(StoreErrorKind::Unanswered, &format!("no answer within {left:?}")))
            }
        }
    }

    /// Returns the session of the connection in use, if there is one.
    pub(super) fn session(&self) -> Option<Arc<Session>> {
        match &self.state().phase {
            Phase::Ready(link) if !link.dead.load(Ordering::Acquire) => Some(Arc::clone(&link.session)),
            _ => None,
        }
    }

    /// Returns the identifier of the server's run, which changes at each start. `None` when the
    /// user has no right to read it. A restart ends all connections.
    pub(super) async fn run_id<'a>(&self, ready: &'a Ready) -> Result<Option<&'a str>, Fault> {
        let ask = async || {
            let info = self.call_if_allowed(ready, redis::cmd("INFO").arg("server")).await?;
            let info = info.as_ref().and_then(reply::info);
            let said = info.and_then(|info| reply::field(info, "run_id")).map(str::to_owned);
            if said.is_none() {
                let what = "INFO has no run_id, so a restart of the server with old data will not be noticed";
                tracing::warn!(target: TARGET, store = ?self.dialer.address, "{what}");
            }
            Ok::<_, Fault>(said)
        };
        Ok(ready.link.run_id.get_or_try_init(ask).await?.as_deref())
    }

    /// Returns the runtime of the connector's tasks.
    pub(super) fn runtime(&self) -> &Handle {
        &self.runtime
    }

    /// Returns the same connection with the present time.
    pub(super) fn later(&self, ready: &Ready) -> Ready {
        Ready { now: self.dialer.clock.now(), ..ready.clone() }
    }

    /// Runs a script.
    pub(super) async fn run(&self, ready: &Ready, invocation: &Invocation) -> Result<Value, Fault> {
        let answer = match self.call(ready, invocation.by_name()).await {
            // The script was not executed, so it may be sent again. Boxed: rare.
            Err(CallError::NoScript) => {
                Box::pin(self.call(&self.later(ready), &invocation.by_source())).await
            }
            answer => answer,
        };
        answer.map_err(|error| match error {
            CallError::Other(error) => error,
            CallError::NoScript => {
                let what = format!("NOSCRIPT in answer to EVAL of {}", invocation.script().name);
                self.error(StoreErrorKind::Refused, &what).into()
            }
        })
    }
}

/// Why a call has no result.
pub(super) enum CallError {
    NoScript,
    Other(Fault),
}

/// Sends a command after ASKING, so that the server serves it for a slot that it is importing.
async fn ask(connection: &mut MultiplexedConnection, command: &Cmd) -> redis::RedisResult<Value> {
    let mut pipeline = redis::pipe();
    pipeline.cmd("ASKING");
    pipeline.add_command(command.clone());
    let answers = connection.send_packed_commands(&pipeline, 0, 2).await?;
    // Without ASKING the server redirects the command, unless the slot has arrived meanwhile.
    let all_refused = answers.iter().all(|answer| matches!(answer, Value::ServerError(_)));
    let answer = if all_refused { answers.first() } else { answers.last() };
    Ok(answer.cloned().unwrap_or(Value::Nil))
}

impl From<CallError> for Fault {
    fn from(error: CallError) -> Self {
        match error {
            CallError::Other(error) => error,
            CallError::NoScript => {
                StoreError::new(StoreErrorKind::Refused, "NOSCRIPT in answer to a command").into()
            }
        }
    }
}

async fn connect(dialer: &Dialer, server_clock: &ServerClock) -> Outcome {
    let dead = Arc::new(AtomicBool::new(false));
    let flag = Arc::clone(&dead);
    let started = dialer.clock.now();
    let mut connection = dialer
        .dial(move |push: PushInfo| {
            if push.kind == PushKind::Disconnection {
                flag.store(true, Ordering::Release);
            }
            Ok::<(), SendError>(())
        })
        .await?;

    // The server's time is needed before anything else.
    let sent = dialer.clock.now();
    let left = dialer.connect_timeout.saturating_sub(sent.since(started));
    let time = tokio::time::timeout(left, connection.send_packed_command(&redis::cmd("TIME"))).await;
    let time = match time {
        Ok(Ok(Value::ServerError(error))) => return Err(dialer.address.refused(&error)),
        Ok(Ok(value)) => value,
        Ok(Err(error)) => return Err(dialer.address.connect_error(&error)),
        Err(_) => {
            let what = format!("connected, but no answer within {:?}", dialer.connect_timeout);
            return Err(dialer.address.error(StoreErrorKind::Unreachable, what));
        }
    };
    let time = reply::time(&time)
        .ok_or_else(|| dialer.address.error(StoreErrorKind::Refused, format!("unexpected TIME: {time:?}")))?;
    server_clock.observe(time, sent);
    let (heard, run_id, session) = (AtomicU64::new(0), OnceCell::new(), Session::new(&dialer.address));
    Ok(Arc::new(Link { connection, dead, heard, run_id, session: Arc::new(session) }))
}
