//! [`Java`]: the running Java program, its calls and their answers.

use std::collections::HashMap;
use std::fmt;
use std::future::IntoFuture;
use std::io::{BufRead, BufReader, Write};
use std::process::{ChildStdin, ChildStdout, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use lock_core::store::BoxFuture;
use serde_json::Value;
use tokio::sync::oneshot;

use super::build::Program;
use super::lock::JavaLock;
use super::servers::Servers;
use crate::clock::nanos_ahead_of_monotonic;
use crate::eventually;
use crate::process::Process;

/// Maximum time for an answer if a test sets no other limit. Generous: two busy cores.
const LIMIT: Duration = Duration::from_secs(60);

/// The pending calls by id. `None` when no answer will come any more.
type Waiting = Arc<Mutex<Option<HashMap<u64, oneshot::Sender<Value>>>>>;

/// Settings of a Redisson client.
#[derive(Clone, Debug, Default)]
pub struct Settings {
    /// Settings of the client's session.
    client: Vec<String>,
    /// Arguments of the client's own JVM, if it has one.
    jvm: Option<Vec<String>>,
}

impl Settings {
    /// Gives the client its own JVM, which can be stopped and killed.
    #[must_use]
    pub fn alone(mut self) -> Self {
        self.jvm.get_or_insert_default();
        self
    }

    /// Sets Redisson's `lockWatchdogTimeout`: the lease of locks without a fixed one, renewed every
    /// third of it. Default: 30 s.
    #[must_use]
    pub fn watchdog(self, lease: Duration) -> Self {
        self.with("watchdog", lease.as_millis())
    }

    /// Sets Redisson's `fairLockWaitTimeout`: how long a waiter without a limit counts as alive.
    /// Default: 5 min.
    #[must_use]
    pub fn fair_wait(self, wait: Duration) -> Self {
        self.with("fair_wait", wait.as_millis())
    }

    /// Sets how far Redisson's wall clock is ahead of the machine's; negative for behind. Gives the
    /// client its own JVM.
    #[must_use]
    pub fn wall_clock_ahead(mut self, millis: i64) -> Self {
        self.jvm.get_or_insert_default().push(format!("wall={millis}"));
        self
    }

    fn with(mut self, name: &str, value: impl fmt::Display) -> Self {
        self.client.push(format!("{name}={value}"));
        self
    }
}

/// A Java program, which serves any number of sessions. It ends with the last of them.
#[derive(Debug)]
struct Jvm {
    process: Mutex<Process>,
    input: Mutex<ChildStdin>,
    waiting: Waiting,
    next: AtomicU64,
}

impl Jvm {
    /// Returns the JVM that all tests without their own JVM share.
    async fn shared() -> Arc<Self> {
        static SHARED: tokio::sync::Mutex<Weak<Jvm>> = tokio::sync::Mutex::const_new(Weak::new());

        let mut shared = SHARED.lock().await;
        if let Some(jvm) = shared.upgrade().filter(|jvm| jvm.process().ended().is_none()) {
            return jvm;
        }
        let jvm = Arc::new(Self::start(Vec::new()).await);
        *shared = Arc::downgrade(&jvm);
        jvm
    }

    async fn start(arguments: Vec<String>) -> Self {
        // The first build takes a while, and the test may be connecting meanwhile.
        let built = tokio::task::spawn_blocking(Program::build).await.expect("it does not panic");
        let program = built.unwrap_or_else(|error| panic!("no Java program: {error}"));
        let mut command = program.command();
        // Puts the time stamps of both sides on one clock.
        command.args(arguments).arg(format!("clock={}", nanos_ahead_of_monotonic()));
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::inherit());
        let mut process = Process::spawn(&mut command, None)
            .unwrap_or_else(|error| panic!("can't start {}: {error}", command.get_program().display()));
        let input = Mutex::new(process.stdin().expect("stdin is piped"));
        let output = process.stdout().expect("stdout is piped");
        let waiting: Waiting = Arc::new(Mutex::new(Some(HashMap::new())));
        let readers = waiting.clone();
        std::thread::spawn(move || read(output, &readers));
        Self { process: Mutex::new(process), input, waiting, next: AtomicU64::new(1) }
    }

    /// Sends a command; `words` are what follows its id.
    fn call(&self, words: String) -> Call {
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let (sender, receiver) = oneshot::channel();
        // After the end of the program, the dropped sender tells the caller.
        if let Some(waiting) = self.waiting.lock().unwrap_or_else(PoisonError::into_inner).as_mut() {
            waiting.insert(id, sender);
        }
        let mut input = self.input.lock().unwrap_or_else(PoisonError::into_inner);
        // A program that has ended takes nothing, which the caller learns from its call.
        let _ = writeln!(input, "{id} {words}").and_then(|()| input.flush());
        Call { receiver, what: words, limit: LIMIT }
    }

    fn process(&self) -> MutexGuard<'_, Process> {
        self.process.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A Redisson client in a Java program. Closed on drop.
#[derive(Debug)]
pub struct Java {
    jvm: Arc<Jvm>,
    /// Its number among the sessions of the program.
    session: u64,
    client: String,
    is_alone: bool,
}

impl Drop for Java {
    fn drop(&mut self) {
        // Nobody waits for the answer.
        drop(self.jvm.call(format!("- close {}", self.session)));
    }
}

impl Java {
    /// Starts a client with Redisson's default settings, and waits until it is connected.
    ///
    /// # Panics
    ///
    /// When the program can't be built or started; the text says what is missing.
    pub async fn start(servers: &impl Servers) -> Self {
        Self::start_with(servers, Settings::default()).await
    }

    /// Starts a client with other settings.
    ///
    /// # Panics
    ///
    /// When the program can't be built or started.
    pub async fn start_with(servers: &impl Servers, settings: Settings) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);

        let is_alone = settings.jvm.is_some();
        let jvm = match settings.jvm {
            Some(arguments) => Arc::new(Jvm::start(arguments).await),
            None => Jvm::shared().await,
        };
        let session = NEXT.fetch_add(1, Ordering::Relaxed);
        let words: Vec<String> = std::iter::once(servers.java_argument()).chain(settings.client).collect();
        let opened = jvm.call(format!("- open {session} {}", words.join(" "))).json().await;
        let client = opened["client"].as_str().unwrap_or_else(|| panic!("no client: {opened}")).to_owned();
        Self { jvm, session, client, is_alone }
    }

    /// Returns the id of the Redisson client, which is the prefix of its owners.
    #[must_use]
    pub fn client(&self) -> &str {
        &self.client
    }

    /// Returns the lock `name` of Redisson's `kind`, as used by the thread `thread`.
    #[must_use]
    pub fn lock<'a>(&'a self, thread: &'a str, kind: &'a str, name: &'a str) -> JavaLock<'a> {
        JavaLock { java: self, thread, kind, name }
    }

    /// Sends a command to a thread; `words` are what follows the thread's name.
    pub(crate) fn call(&self, thread: &str, words: &str) -> Call {
        self.jvm.call(format!("{}/{thread} {words}", self.session))
    }

    /// Interrupts the thread.
    ///
    /// # Panics
    ///
    /// As an awaited [`Call`] does.
    pub async fn interrupt(&self, thread: &str) {
        self.jvm.call(format!("- interrupt {}/{thread}", self.session)).json().await;
    }

    /// Waits until the thread sleeps and waits for a message. Its client subscribes before that.
    /// Until the thread sleeps, it ignores `1`, the message about read and write locks: Redisson
    /// then only wakes threads that sleep.
    ///
    /// # Panics
    ///
    /// As an awaited [`Call`] does, or when the thread never sleeps.
    pub async fn is_parked(&self, thread: &str) {
        let words = format!("- parked {}/{thread}", self.session);
        let parked = async || self.jvm.call(words.clone()).json().await["value"] == true;
        eventually(parked, LIMIT).await;
    }

    /// Sets how far Redisson's wall clock is ahead of the machine's from now on; negative for
    /// behind.
    ///
    /// # Panics
    ///
    /// As an awaited [`Call`] does.
    pub async fn set_wall_clock_ahead(&self, millis: i64) {
        self.alone().call(format!("- wall {millis}")).json().await;
    }

    /// Closes the client, and the program if it serves no other clients.
    ///
    /// # Panics
    ///
    /// When the client does not close, or the program does not end with status 0.
    pub async fn exit(self) {
        self.jvm.call(format!("- close {}", self.session)).json().await;
        if self.is_alone {
            self.jvm.call("- exit".to_owned()).json().await;
            let status = tokio::task::block_in_place(|| self.jvm.process().wait(LIMIT));
            assert!(status.success(), "the Java program ended with {status}");
        }
    }

    /// Sends SIGKILL. For locks this is like the crash of a machine.
    ///
    /// # Panics
    ///
    /// When the program serves other clients too: see [`Settings::alone`].
    pub fn kill(&mut self) {
        self.alone().process().kill();
    }

    /// Returns the program, which must not serve other clients.
    fn alone(&self) -> &Jvm {
        assert!(self.is_alone, "the program serves others too: start it with `Settings::alone`");
        &self.jvm
    }
}

/// Passes each answer to its caller.
fn read(output: ChildStdout, waiting: &Waiting) {
    let _end = End(waiting);
    for line in BufReader::new(output).lines() {
        let Ok(line) = line else { break };
        let answer: Value = serde_json::from_str(&line).unwrap_or_else(|error| panic!("{line:?}: {error}"));
        let id = answer["id"].as_u64().unwrap_or_else(|| panic!("no id: {line}"));
        let sender = waiting
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .as_mut()
            .and_then(|waiting| waiting.remove(&id));
        if let Some(sender) = sender {
            // The caller may not wait any more.
            let _ = sender.send(answer);
        }
    }
}

/// Tells all waiting callers that no answer will come, however reading ends.
struct End<'a>(&'a Waiting);

impl Drop for End<'_> {
    fn drop(&mut self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }
}

/// A command that has been sent. It runs whether it is awaited or not.
#[derive(Debug)]
#[must_use = "a call may fail: await it"]
pub struct Call {
    receiver: oneshot::Receiver<Value>,
    what: String,
    limit: Duration,
}

impl Call {
    /// Sets the maximum wait for the answer; the default is a minute.
    pub fn within(mut self, limit: Duration) -> Self {
        self.limit = limit;
        self
    }

    /// Checks that there is no answer yet.
    ///
    /// # Panics
    ///
    /// When the program has ended or has answered; the text contains the answer.
    #[track_caller]
    pub fn assert_still_out(&mut self) {
        match self.receiver.try_recv() {
            Err(oneshot::error::TryRecvError::Empty) => {}
            Err(error) => panic!("{}: {error}", self.what),
            Ok(answer) => panic!("{} is answered: {answer}", self.what),
        }
    }

    async fn json(self) -> Value {
        match tokio::time::timeout(self.limit, self.receiver).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(_)) => panic!("{}: the Java program has ended", self.what),
            Err(_) => panic!("{}: no answer within {:?}", self.what, self.limit),
        }
    }
}

impl IntoFuture for Call {
    type Output = Answer;
    type IntoFuture = BoxFuture<Answer>;

    /// Waits for the answer; panics when none comes.
    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move {
            let what = self.what.clone();
            Answer::new(what, &self.json().await)
        })
    }
}

/// The answer to a call.
#[derive(Clone, Debug)]
pub struct Answer {
    what: String,
    /// The thread's field in the hashes of locks.
    pub owner: String,
    /// When the call began, on [`now_nanos`](crate::clock::now_nanos).
    pub start: u64,
    /// When the call ended.
    pub end: u64,
    /// The returned value, or the exception that ended the call.
    pub result: Result<Value, Exception>,
}

/// An exception of the Java program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Exception {
    /// Its class.
    pub class: String,
    /// Its text.
    pub message: String,
}

impl Answer {
    fn new(what: String, json: &Value) -> Self {
        let text = |name: &str| json[name].as_str().unwrap_or_default().to_owned();
        let number = |name: &str| json[name].as_u64().unwrap_or_else(|| panic!("no {name}: {json}"));
        let result = match json.get("error") {
            None => Ok(json["value"].clone()),
            Some(_) => Err(Exception { class: text("error"), message: text("message") }),
        };
        Self { what, owner: text("owner"), start: number("start"), end: number("end"), result }
    }

    /// Returns the value that the call returned.
    ///
    /// # Panics
    ///
    /// When it ended with an exception.
    #[track_caller]
    #[must_use]
    pub fn value(&self) -> &Value {
        match &self.result {
            Ok(value) => value,
            Err(Exception { class, message }) => panic!("{}: {class}: {message}", self.what),
        }
    }

    /// Fails the test if the call ended with an exception.
    ///
    /// # Panics
    ///
    /// When the call ended with an exception.
    #[track_caller]
    pub fn done(&self) {
        let _ = self.value();
    }

    /// Returns the boolean that the call returned.
    ///
    /// # Panics
    ///
    /// When it returned something else.
    #[track_caller]
    #[must_use]
    pub fn is_true(&self) -> bool {
        self.value().as_bool().unwrap_or_else(|| panic!("{self:?}"))
    }

    /// Returns the number that the call returned.
    ///
    /// # Panics
    ///
    /// When it returned something else.
    #[track_caller]
    #[must_use]
    pub fn number(&self) -> u64 {
        self.value().as_u64().unwrap_or_else(|| panic!("{self:?}"))
    }

    /// Returns the class of the exception that ended the call, without its package.
    ///
    /// # Panics
    ///
    /// When the call ended without an exception.
    #[track_caller]
    #[must_use]
    pub fn exception(&self) -> &str {
        match &self.result {
            Ok(value) => panic!("{}: no exception but {value}", self.what),
            Err(exception) => exception.class.rsplit('.').next().unwrap_or_default(),
        }
    }

    /// Returns how long the call took.
    #[must_use]
    pub fn took(&self) -> Duration {
        Duration::from_nanos(self.end.saturating_sub(self.start))
    }
}
