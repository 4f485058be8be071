//! [`History`]: the combined logs of a run.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::time::Duration;

use super::event::{ErrorClass, Event, Kind, Loses, Outcome, Remains, Want, Wrote};
use super::log::{Log, Record};
use super::spans::{Spans, nanos};

/// Prefix of the log names of witnesses, which watch the way to a server and make no requests.
pub(crate) const WITNESS: &str = "witness";

/// A request for one key.
#[derive(Clone, Debug)]
pub struct Request {
    /// `process/number`.
    pub id: String,
    /// Its process.
    pub process: String,
    /// The number of its call, which all requests of the call share.
    pub call: u64,
    /// The key.
    pub key: String,
    /// The kind of lock.
    pub kind: Kind,
    /// The caller's patience.
    pub want: Want,
    /// Maximum wait.
    pub wait: Duration,
    /// A fixed lease.
    pub lease: Option<Duration>,
    /// When it was sent.
    pub asked: u64,
    /// When it was granted, refused or dropped.
    pub answered: Option<u64>,
    /// The error, if it was refused.
    pub refused: Option<(ErrorClass, String)>,
    /// The grant, if it was granted.
    pub grant: Option<Grant>,
}

/// A grant.
#[derive(Clone, Debug)]
pub struct Grant {
    /// Its token.
    pub token: u64,
    /// When the caller received it.
    pub at: u64,
    /// The last known end of its validity until its release was sent.
    pub to: u64,
    /// Each time at which its validity was read, and until when it was valid then.
    pub looks: Vec<(u64, u64)>,
    /// When the body was started.
    pub body: Option<u64>,
    /// When it was downgraded and became shared.
    pub shared_from: Option<u64>,
    /// When the lost signal came, and why.
    pub lost: Option<(u64, String)>,
    /// When its release was sent, and until when the lock was valid at that time.
    pub ended: Option<(u64, u64)>,
    /// When the release ended, and its outcome.
    pub out: Option<(u64, Outcome)>,
}

/// The stops and the end of one process.
#[derive(Clone, Debug, Default)]
pub struct Life {
    /// The beginning and end of each stop.
    pub pauses: Vec<(u64, u64)>,
    /// When it was killed.
    pub killed: Option<u64>,
    /// Times in which it stood still, alone or with the machine.
    pub(super) stood: Spans,
}

impl Life {
    /// Returns how long the process ran between the two times.
    #[must_use]
    pub fn running(&self, from: u64, to: u64) -> Duration {
        let to = self.killed.map_or(to, |killed| killed.min(to));
        let paused = |(start, end): &(u64, u64)| (*end).min(to).saturating_sub((*start).max(from));
        let paused: u64 = self.pauses.iter().map(paused).sum();
        Duration::from_nanos(to.saturating_sub(from).saturating_sub(paused))
    }

    /// Returns the same without times in which the process stood still.
    pub(super) fn awake(&self, from: u64, to: u64) -> Duration {
        let to = self.killed.map_or(to, |killed| killed.min(to));
        let asleep = Spans::of(self.pauses.iter().copied().chain(self.stood.iter()));
        Duration::from_nanos(to.saturating_sub(from).saturating_sub(asleep.covered(from, to)))
    }
}

/// A fault of the run.
#[derive(Clone, Debug)]
pub struct Fault {
    /// Its name for reports.
    pub name: String,
    /// Its loss in the store.
    pub loses: Loses,
    /// The errors that it explains.
    pub errors: Vec<ErrorClass>,
    /// When it began.
    pub from: u64,
    /// When it was over; the end of time if the log does not say.
    pub to: u64,
    /// The time in which it took keys; `None` if the log does not say.
    pub struck: Option<(u64, u64)>,
    /// The only key that it may have taken; `None` for any key.
    pub key: Option<String>,
}

impl Fault {
    /// Whether it may keep callers from the store.
    #[must_use]
    pub fn hinders(&self) -> bool {
        self.errors.contains(&ErrorClass::Unavailable)
    }

    /// Whether it may have taken this key.
    #[must_use]
    pub fn takes(&self, key: &str) -> bool {
        self.loses.keys() && self.key.as_ref().is_none_or(|only| only == key)
    }
}

/// An observation of a key from outside: the key was like that at some time from `since` to `at`.
#[derive(Clone, Debug, Default)]
pub struct Seen {
    /// When it began.
    pub since: u64,
    /// When it ended.
    pub at: u64,
    /// The ids of the holders.
    pub holders: Vec<String>,
    /// The time at which the hold ends if nobody renews it. It may be later, by the duration of the
    /// observation.
    pub expires: u64,
    /// The waiters in their order, and until when each counts as alive, at the earliest.
    pub queue: Vec<(String, u64)>,
}

/// A server's command count at one time.
#[derive(Clone, Copy, Debug)]
pub struct Sample {
    /// The time.
    pub at: u64,
    /// The number of commands since the server's start.
    pub total: u64,
}

/// A write to a set that is guarded by tokens.
#[derive(Clone, Debug)]
pub(super) struct Write {
    pub(super) at: u64,
    pub(super) token: u64,
    pub(super) element: String,
    pub(super) outcome: Wrote,
}

/// A leftover at the end.
#[derive(Clone, Debug)]
pub(super) struct Left {
    pub(super) at: u64,
    pub(super) what: Remains,
    pub(super) ttl: Option<Duration>,
    pub(super) name: String,
}

/// The logs of a run.
#[derive(Clone, Debug, Default)]
pub struct History {
    /// In the order of processes and of their requests' numbers.
    pub requests: Vec<Request>,
    /// By process, including those without requests.
    pub lives: BTreeMap<String, Life>,
    /// In the order of time.
    pub faults: Vec<Fault>,
    /// By key, in the order of time.
    pub seen: BTreeMap<String, Vec<Seen>>,
    /// By server, in the order of time.
    pub commands: BTreeMap<String, Vec<Sample>>,
    /// When the last fault was over.
    pub calm: Option<u64>,
    /// When all work was done.
    pub quiet: Option<u64>,
    /// The last time in the logs.
    pub end: u64,
    pub(super) writes: BTreeMap<String, Vec<Write>>,
    pub(super) contents: BTreeMap<String, Vec<String>>,
    pub(super) left: Vec<Left>,
}

impl History {
    /// Reads the logs `<process>.log` of a folder.
    ///
    /// # Errors
    ///
    /// When a file can't be read, or is not a log.
    pub fn read(folder: &Path) -> io::Result<Self> {
        let mut history = Self::default();
        for entry in std::fs::read_dir(folder)? {
            let path = entry?.path();
            if path.extension().is_some_and(|extension| extension == "log") {
                let process = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
                history.add(&process, &std::fs::read_to_string(&path)?).map_err(|line| {
                    let text = format!("{}: not an event: {line:?}", path.display());
                    io::Error::new(io::ErrorKind::InvalidData, text)
                })?;
            }
        }
        history.sort();
        Ok(history)
    }

    /// Combines logs in memory.
    ///
    /// # Panics
    ///
    /// When an event can't follow those before it.
    #[must_use]
    pub fn of<'a>(logs: impl IntoIterator<Item = (&'a str, &'a Log)>) -> Self {
        let mut history = Self::default();
        for (process, log) in logs {
            if let Err(line) = history.add(process, &log.text()) {
                panic!("{process}: not an event here: {line:?}");
            }
        }
        history.sort();
        history
    }

    /// Parses the text of logs, for tests of the checkers. Lines may be indented.
    ///
    /// # Errors
    ///
    /// The first line that is not an event, or can't follow those before it.
    pub fn parse(logs: &[(&str, &str)]) -> Result<Self, String> {
        let mut history = Self::default();
        for (process, log) in logs {
            let lines: String = log.lines().map(|line| format!("{}\n", line.trim())).collect();
            history.add(process, &lines)?;
        }
        history.sort();
        Ok(history)
    }

    /// Returns how much of the time between `from` and `to` was lost because the process or a way
    /// to the servers stood still. Only the one that lost most counts.
    pub(super) fn stood(&self, process: &str, from: u64, to: u64) -> Duration {
        let who = self.lives.iter().filter(|(name, _)| *name == process || name.starts_with(WITNESS));
        let most = who.map(|(_, life)| life.stood.covered(from, to)).max();
        Duration::from_nanos(most.unwrap_or(0))
    }

    /// Returns the granted requests, by key.
    pub(super) fn grants(&self) -> BTreeMap<&str, Vec<(&Request, &Grant)>> {
        let mut keys: BTreeMap<&str, Vec<(&Request, &Grant)>> = BTreeMap::new();
        for request in &self.requests {
            if let Some(grant) = &request.grant {
                keys.entry(&request.key).or_default().push((request, grant));
            }
        }
        keys
    }

    fn open_fault(&mut self, name: &str) -> Option<&mut Fault> {
        self.faults.iter_mut().rev().find(|fault| fault.name == name && fault.to == u64::MAX)
    }

    fn sort(&mut self) {
        self.requests.sort_by(|a, b| a.process.cmp(&b.process));
        self.faults.sort_by_key(|fault| fault.from);
        self.seen.values_mut().for_each(|seen| seen.sort_by_key(|seen| seen.at));
        self.commands.values_mut().for_each(|samples| samples.sort_by_key(|sample| sample.at));
    }

    /// Adds the log of one process.
    fn add(&mut self, process: &str, log: &str) -> Result<(), String> {
        let mut own = Own { process, requests: BTreeMap::new(), life: Life::default(), stood: Vec::new() };
        // A killed process may have left half a line.
        let whole = log.rfind('\n').map_or("", |end| &log[..end]);
        for text in whole.lines().filter(|text| !text.is_empty()) {
            let record = Record::from_line(text).ok_or_else(|| text.to_owned())?;
            self.end = self.end.max(record.at);
            own.apply(record, self).ok_or_else(|| text.to_owned())?;
        }
        self.requests.extend(own.requests.into_values());
        own.life.stood = Spans::of(own.stood);
        self.lives.insert(process.to_owned(), own.life);
        Ok(())
    }
}

/// The state of parsing one log.
struct Own<'a> {
    process: &'a str,
    requests: BTreeMap<u64, Request>,
    life: Life,
    stood: Vec<(u64, u64)>,
}

impl Own<'_> {
    fn grant(&mut self, id: u64) -> Option<&mut Grant> {
        self.requests.get_mut(&id)?.grant.as_mut()
    }

    /// Applies a record. Returns `None` if its event can't follow those before it.
    fn apply(&mut self, record: Record, history: &mut History) -> Option<()> {
        let Record { id, at, until, event } = record;
        match event {
            Event::Ask { key, kind, want, wait, lease, call } => {
                let (process, id_there) = (self.process.to_owned(), format!("{}/{id}", self.process));
                let request = Request {
                    id: id_there,
                    process,
                    call,
                    key,
                    kind,
                    want,
                    wait,
                    lease,
                    asked: at,
                    answered: None,
                    refused: None,
                    grant: None,
                };
                return self.requests.insert(id, request).is_none().then_some(());
            }
            Event::Granted { token } => {
                let request = self.requests.get_mut(&id)?;
                request.answered = Some(at);
                request.grant = Some(Grant {
                    token,
                    at,
                    to: until,
                    looks: vec![(at, until)],
                    body: None,
                    shared_from: None,
                    lost: None,
                    ended: None,
                    out: None,
                });
            }
            Event::Refused { error, why } => {
                let request = self.requests.get_mut(&id)?;
                request.answered = Some(at);
                request.refused = Some((error, why));
            }
            Event::Left => self.requests.get_mut(&id)?.answered = Some(at),
            Event::Body => {
                let grant = self.grant(id)?;
                grant.body = Some(at);
                look(grant, at, until);
            }
            Event::Alive => look(self.grant(id)?, at, until),
            Event::Shared => self.grant(id)?.shared_from = Some(at),
            Event::Lost { why } => {
                self.grant(id)?.lost.get_or_insert((at, why));
            }
            Event::End => {
                let grant = self.grant(id)?;
                grant.looks.push((at, until));
                grant.ended = Some((at, until));
                // Valid until the release. If it was lost before that, valid until its last known
                // end.
                grant.to = if until > at { at } else { at.min(grant.to) };
            }
            Event::Out { how } => self.grant(id)?.out = Some((at, how)),
            Event::Paused => self.life.pauses.push((at, u64::MAX)),
            Event::Continued => self.life.pauses.last_mut()?.1 = at,
            Event::Killed => self.life.killed = Some(at),
            Event::Stood { time } => self.stood.push((at.saturating_sub(nanos(time)), at)),
            Event::Calm => history.calm = Some(at),
            Event::Quiet => history.quiet = Some(at),
            Event::Fault { name, loses, errors } => {
                let (to, struck, key) = (u64::MAX, None, None);
                history.faults.push(Fault { name, loses, errors, from: at, to, struck, key });
            }
            Event::Aimed { name, key } => history.open_fault(&name)?.key = Some(key),
            Event::Struck { name } => history.open_fault(&name)?.struck.get_or_insert((at, at)).1 = at,
            Event::FaultOver { name } => history.open_fault(&name)?.to = at,
            Event::Commands { server, total } => {
                history.commands.entry(server).or_default().push(Sample { at, total });
            }
            Event::Seen { key, took, holders, expires, queue } => {
                let since = at.saturating_sub(nanos(took));
                history.seen.entry(key).or_default().push(Seen { since, at, holders, expires, queue });
            }
            Event::Remains { what, ttl, name } => history.left.push(Left { at, what, ttl, name }),
            Event::Wrote { set, token, element, outcome } => {
                history.writes.entry(set).or_default().push(Write { at, token, element, outcome });
            }
            Event::Contents { set, elements } => {
                history.contents.insert(set, elements);
            }
        }
        Some(())
    }
}

fn look(grant: &mut Grant, at: u64, until: u64) {
    grant.looks.push((at, until));
    // Renewed meanwhile, or lost: then its last known end counts.
    if until > at {
        grant.to = grant.to.max(until);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ASK: &str = "1 10 10 ask mutex try 0 - 1 a\n";

    #[test]
    fn half_a_line_at_the_end_is_left_out_and_anything_else_refused() {
        let mut history = History::default();
        history.add("p", &format!("{ASK}1 20 90 gra")).unwrap();
        assert_eq!(history.requests.len(), 1);
        assert!(history.add("p", "nonsense\n").is_err());
        assert!(history.add("p", "1 20 90 granted 5\n").is_err(), "no request before the grant");
    }

    #[test]
    fn a_window_ends_with_what_is_known_of_it() {
        let to = |events: &str| {
            let history = History::parse(&[("p", &format!("{ASK}{events}"))]).unwrap();
            history.requests[0].grant.as_ref().unwrap().to
        };
        assert_eq!(to("1 20 90 granted 5"), 90, "killed at work");
        assert_eq!(to("1 20 90 granted 5\n1 50 150 alive"), 150, "renewed and killed");
        assert_eq!(
            to("1 20 90 granted 5\n1 50 150 alive\n1 200 200 alive"),
            150,
            "stopped, and lost meanwhile"
        );
        assert_eq!(to("1 20 90 granted 5\n1 60 90 end"), 60, "given back");
        assert_eq!(to("1 20 90 granted 5\n1 200 200 end"), 90, "given back when it was lost");
        assert_eq!(to("1 20 20 granted 5\n1 30 30 end"), 20, "never valid");
    }

    #[test]
    fn files_and_memory_make_the_same_history() {
        let folder = tempfile::tempdir().unwrap();
        let logs = [Log::open(&folder.path().join("0.0.log")).unwrap(), Log::in_memory(|| 7)];
        let key = "a b".to_owned();
        let ask =
            Event::Ask { key, kind: Kind::Read, want: Want::Try, wait: Duration::ZERO, lease: None, call: 1 };
        for log in &logs {
            log.note(1, &ask, || Duration::ZERO);
            log.note(1, &Event::Granted { token: 5 }, || Duration::from_secs(1));
            log.say(&Event::Paused);
            log.say(&Event::Continued);
            log.say(&Event::Killed);
        }
        for history in [History::read(folder.path()).unwrap(), History::of([("0.0", &logs[1])])] {
            let [request] = &history.requests[..] else { panic!("{history:?}") };
            assert_eq!(
                (request.id.as_str(), request.key.as_str(), request.kind),
                ("0.0/1", "a b", Kind::Read)
            );
            let grant = request.grant.as_ref().unwrap();
            assert!(grant.token == 5 && grant.to - grant.at >= 1_000_000_000);
            let life = &history.lives["0.0"];
            assert!(life.killed.is_some() && life.pauses[0].1 < u64::MAX, "{life:?}");
        }
    }
}
