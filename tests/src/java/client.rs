//! [`Java`], the running program, its calls and their answers.

use std::collections::HashMap;
use std::fmt;
use std::future::IntoFuture;
use std::io::{BufRead, BufReader, Write};
use std::process::{ChildStdin, ChildStdout, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use lock_runtime::store::BoxFuture;
use serde_json::Value;
use tokio::sync::oneshot;

use super::build::Program;
use super::lock::JavaLock;
use super::servers::Servers;
use crate::clock::nanos_ahead_of_monotonic;
use crate::process::Process;

/// How long an answer may take where a test says nothing else. Generous: two busy cores.
const LIMIT: Duration = Duration::from_secs(60);

/// Those who wait for answers, by the ids of their calls. `None` when no answer will come any more.
type Waiting = Arc<Mutex<Option<HashMap<u64, oneshot::Sender<Value>>>>>;

/// How the Java program is set up.
#[derive(Clone, Debug, Default)]
pub struct Settings {
    arguments: Vec<String>,
}

impl Settings {
    /// Redisson's `lockWatchdogTimeout`: the lease of locks without one; renewed every third of it. Default: 30 s.
    #[must_use]
    pub fn watchdog(self, lease: Duration) -> Self {
        self.with("watchdog", lease.as_millis())
    }

    /// Redisson's `fairLockWaitTimeout`: how long a waiter without a limit counts as alive. Default: 5 min.
    #[must_use]
    pub fn fair_wait(self, wait: Duration) -> Self {
        self.with("fair_wait", wait.as_millis())
    }

    /// The wall clock that Redisson reads is this much ahead of the machine's, or behind it.
    #[must_use]
    pub fn wall_clock_ahead(self, millis: i64) -> Self {
        self.with("wall", millis)
    }

    fn with(mut self, name: &str, value: impl fmt::Display) -> Self {
        self.arguments.push(format!("{name}={value}"));
        self
    }
}

/// A Java program with a Redisson client. It ends with this handle.
#[derive(Debug)]
pub struct Java {
    process: Process,
    input: Mutex<ChildStdin>,
    waiting: Waiting,
    next: AtomicU64,
    client: String,
}

impl Java {
    /// Starts the program with Redisson's own settings, and waits until it is connected.
    ///
    /// # Panics
    ///
    /// When it can't be built or started; the text says what is missing.
    pub async fn start(servers: &impl Servers) -> Self {
        Self::start_with(servers, Settings::default()).await
    }

    /// Starts the program with other settings.
    ///
    /// # Panics
    ///
    /// When it can't be built or started.
    pub async fn start_with(servers: &impl Servers, settings: Settings) -> Self {
        let program = Program::build().unwrap_or_else(|error| panic!("no Java program: {error}"));
        let mut command = program.command();
        command.arg(servers.java_argument()).args(settings.arguments);
        // Stamps of both sides are on one clock.
        command.arg(format!("clock={}", nanos_ahead_of_monotonic()));
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::inherit());
        let mut process = Process::spawn(&mut command, None)
            .unwrap_or_else(|error| panic!("can't start {}: {error}", command.get_program().display()));
        let input = Mutex::new(process.stdin().expect("stdin is piped"));
        let output = process.stdout().expect("stdout is piped");
        let (sender, ready) = oneshot::channel();
        let waiting: Waiting = Arc::new(Mutex::new(Some(HashMap::from([(0, sender)]))));
        let readers = waiting.clone();
        std::thread::spawn(move || read(output, &readers));
        let mut java = Self { process, input, waiting, next: AtomicU64::new(1), client: String::new() };
        let ready = Call { receiver: ready, what: "start".to_owned(), limit: LIMIT }.json().await;
        java.client = ready["client"].as_str().expect("a client says its id").to_owned();
        java
    }

    /// The id of its Redisson client: what owners begin with.
    #[must_use]
    pub fn client(&self) -> &str {
        &self.client
    }

    /// The lock `name` of Redisson's `kind`, as the thread `thread` uses it.
    #[must_use]
    pub fn lock<'a>(&'a self, thread: &'a str, kind: &'a str, name: &'a str) -> JavaLock<'a> {
        JavaLock { java: self, thread, kind, name }
    }

    /// Sends a command; `words` are those behind its id.
    pub(crate) fn call(&self, words: &str) -> Call {
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let (sender, receiver) = oneshot::channel();
        // After its end, the dropped sender says so.
        if let Some(waiting) = self.waiting.lock().unwrap_or_else(PoisonError::into_inner).as_mut() {
            waiting.insert(id, sender);
        }
        let mut input = self.input.lock().unwrap_or_else(PoisonError::into_inner);
        // One that has ended takes nothing, which the call says.
        let _ = writeln!(input, "{id} {words}").and_then(|()| input.flush());
        Call { receiver, what: words.to_owned(), limit: LIMIT }
    }

    /// Interrupts what the thread does.
    ///
    /// # Panics
    ///
    /// As an awaited [`Call`] does.
    pub async fn interrupt(&self, thread: &str) {
        self.call(&format!("- interrupt {thread}")).json().await;
    }

    /// From now on the wall clock that Redisson reads is this much ahead of the machine's, or behind it.
    ///
    /// # Panics
    ///
    /// As an awaited [`Call`] does.
    pub async fn set_wall_clock_ahead(&self, millis: i64) {
        self.call(&format!("- wall {millis}")).json().await;
    }

    /// Ends the program in good order.
    ///
    /// # Panics
    ///
    /// When it does not end, or not with status 0.
    pub async fn exit(mut self) {
        self.call("- exit").json().await;
        let process = &mut self.process;
        let status = tokio::task::block_in_place(|| process.wait(LIMIT));
        assert!(status.success(), "the Java program ended with {status}");
    }

    /// SIGKILL: the crash of a machine, as far as locks are concerned.
    pub fn kill(&mut self) {
        self.process.kill();
    }

    /// The process, to be signalled.
    pub fn process(&mut self) -> &mut Process {
        &mut self.process
    }
}

/// Hands each answer to who waits for it.
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
            // Nobody may want to know any more.
            let _ = sender.send(answer);
        }
    }
}

/// Tells those who wait that no answer will come, however reading ends.
struct End<'a>(&'a Waiting);

impl Drop for End<'_> {
    fn drop(&mut self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }
}

/// A command that has been sent: it runs whether it is awaited or not.
#[derive(Debug)]
#[must_use = "a call may fail: await it"]
pub struct Call {
    receiver: oneshot::Receiver<Value>,
    what: String,
    limit: Duration,
}

impl Call {
    /// Waits at most this long for the answer, instead of a minute.
    pub fn within(mut self, limit: Duration) -> Self {
        self.limit = limit;
        self
    }

    /// Whether the answer is still out.
    ///
    /// # Panics
    ///
    /// When the program has ended, or has answered: the text says what.
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

    /// The answer; panics when none comes.
    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move {
            let what = self.what.clone();
            Answer::new(what, &self.json().await)
        })
    }
}

/// What a call came to.
#[derive(Clone, Debug)]
pub struct Answer {
    what: String,
    /// The field of the thread in the hashes of locks.
    pub owner: String,
    /// When the call began, on [`now_nanos`](crate::clock::now_nanos).
    pub start: u64,
    /// When it ended.
    pub end: u64,
    /// What it returned, or the exception it ended with.
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

    /// What the call returned.
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
    /// When it did.
    #[track_caller]
    pub fn done(&self) {
        let _ = self.value();
    }

    /// The true or false that the call returned.
    ///
    /// # Panics
    ///
    /// When it returned something else.
    #[track_caller]
    #[must_use]
    pub fn is_true(&self) -> bool {
        self.value().as_bool().unwrap_or_else(|| panic!("{self:?}"))
    }

    /// The number that the call returned.
    ///
    /// # Panics
    ///
    /// When it returned something else.
    #[track_caller]
    #[must_use]
    pub fn number(&self) -> u64 {
        self.value().as_u64().unwrap_or_else(|| panic!("{self:?}"))
    }

    /// The class of the exception with which the call ended, without its package.
    ///
    /// # Panics
    ///
    /// When it ended without.
    #[track_caller]
    #[must_use]
    pub fn exception(&self) -> &str {
        match &self.result {
            Ok(value) => panic!("{}: no exception but {value}", self.what),
            Err(exception) => exception.class.rsplit('.').next().unwrap_or_default(),
        }
    }

    /// How long the call took.
    #[must_use]
    pub fn took(&self) -> Duration {
        Duration::from_nanos(self.end.saturating_sub(self.start))
    }
}
