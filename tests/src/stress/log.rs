//! What happened: events as lines of a file, one file a process.
//!
//! Each line is one `write` to a file opened for appending, so a process that is killed leaves whole lines, except for
//! the last one at worst.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::Path;
use std::time::Duration;

use crate::clock::now_nanos;

/// How much a caller wants the lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Waits for so long that the end of the wait is a failure.
    Patient,
    /// Waits for a short time.
    Short,
    /// Makes one attempt.
    Try,
    /// Drops its future.
    Fickle,
}

impl Kind {
    const NAMES: [(Self, &'static str); 4] =
        [(Self::Patient, "patient"), (Self::Short, "short"), (Self::Try, "try"), (Self::Fickle, "fickle")];

    fn name(self) -> &'static str {
        Self::NAMES.iter().find(|(kind, _)| *kind == self).map_or("", |(_, name)| name)
    }

    fn parse(text: &str) -> Option<Self> {
        Self::NAMES.iter().find(|(_, name)| *name == text).map(|(kind, _)| *kind)
    }
}

/// Whom a lock excludes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Everybody.
    Exclusive,
    /// Everybody but those who share it.
    Shared,
}

/// Something that happened to a request, by its number in its process; or to a process. A request for several keys is
/// noted as one for each.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// The request is about to be sent.
    Ask {
        /// What for.
        key: String,
        /// How much.
        kind: Kind,
        /// Whom it is to exclude.
        mode: Mode,
        /// For how long.
        wait: Duration,
    },
    /// It was granted.
    Got {
        /// Its token.
        token: u64,
    },
    /// The holder is still at work.
    Held,
    /// The holder is about to share from now on.
    Shared,
    /// The release is about to be sent.
    End,
    /// The release has ended, or its guard was dropped.
    Out {
        /// `ok`, `dropped`, `lost …` or another error.
        how: String,
    },
    /// The request was refused.
    No {
        /// `busy`, `timed out`, `unavailable …` or another error.
        why: String,
    },
    /// The caller has dropped its future.
    Left,
    /// The process was stopped.
    Stopped,
    /// It was continued.
    Continued,
    /// It was killed.
    Killed,
}

/// Writes the log of one process.
#[derive(Debug)]
pub struct Writer {
    file: File,
}

impl Writer {
    /// Opens or creates the log.
    ///
    /// # Errors
    ///
    /// When the file can't be opened.
    pub fn open(path: &Path) -> io::Result<Self> {
        Ok(Self { file: OpenOptions::new().create(true).append(true).open(path)? })
    }

    /// Notes that `event` happens now to request `id`. `remaining` tells for how long its lock is still known to be
    /// valid.
    ///
    /// # Panics
    ///
    /// When the log can't be written.
    pub fn note(&self, id: u64, event: &Event, remaining: impl FnOnce() -> Duration) {
        // The clock first: the deadline computed from it is then never later than the real one.
        let now = now_nanos();
        let valid_until = now.saturating_add(u64::try_from(remaining().as_nanos()).unwrap_or(u64::MAX));
        let what = match event {
            Event::Ask { key, kind, mode, wait } => {
                let mode = if *mode == Mode::Shared { ":shared" } else { "" };
                format!("ask {}{mode} {} {key}", kind.name(), wait.as_millis())
            }
            Event::Got { token } => format!("got {token}"),
            Event::Held => "held".to_owned(),
            Event::Shared => "shared".to_owned(),
            Event::End => "end".to_owned(),
            Event::Out { how } => format!("out {how}"),
            Event::No { why } => format!("no {why}"),
            Event::Left => "left".to_owned(),
            Event::Stopped => "stopped".to_owned(),
            Event::Continued => "continued".to_owned(),
            Event::Killed => "killed".to_owned(),
        };
        let line = format!("{id} {now} {valid_until} {what}\n");
        (&self.file).write_all(line.as_bytes()).expect("the log can be written");
    }
}

/// A line of a log.
struct Line {
    id: u64,
    at: u64,
    valid_until: u64,
    event: Event,
}

impl Line {
    fn parse(line: &str) -> Option<Self> {
        let mut words = line.splitn(5, ' ');
        let mut number = || words.next()?.parse::<u64>().ok();
        let (id, at, valid_until) = (number()?, number()?, number()?);
        let (what, rest) = (words.next()?, words.next());
        let event = match (what, rest) {
            ("ask", Some(rest)) => {
                let mut words = rest.splitn(3, ' ');
                let (kind, wait) = (words.next()?, words.next()?.parse().ok()?);
                let (kind, mode) = match kind.strip_suffix(":shared") {
                    Some(kind) => (kind, Mode::Shared),
                    None => (kind, Mode::Exclusive),
                };
                let (key, kind) = (words.next()?.to_owned(), Kind::parse(kind)?);
                Event::Ask { key, kind, mode, wait: Duration::from_millis(wait) }
            }
            ("got", Some(rest)) => Event::Got { token: rest.parse().ok()? },
            ("out", Some(rest)) => Event::Out { how: rest.to_owned() },
            ("no", Some(rest)) => Event::No { why: rest.to_owned() },
            ("held", None) => Event::Held,
            ("shared", None) => Event::Shared,
            ("end", None) => Event::End,
            ("left", None) => Event::Left,
            ("stopped", None) => Event::Stopped,
            ("continued", None) => Event::Continued,
            ("killed", None) => Event::Killed,
            _ => return None,
        };
        Some(Self { id, at, valid_until, event })
    }
}

/// A request, from its log.
#[derive(Clone, Debug)]
pub(super) struct Request {
    /// `process/number`.
    pub(super) id: String,
    pub(super) process: String,
    pub(super) key: String,
    pub(super) kind: Kind,
    pub(super) mode: Mode,
    pub(super) wait: Duration,
    pub(super) asked: u64,
    /// When it was granted, refused or dropped.
    pub(super) answered: Option<u64>,
    pub(super) refused: Option<String>,
    pub(super) grant: Option<Granted>,
}

/// A request that was granted.
#[derive(Clone, Debug)]
pub(super) struct Granted {
    pub(super) token: u64,
    pub(super) at: u64,
    /// The end of what is known of its validity while it was at work.
    pub(super) to: u64,
    /// Since when it shares, if it was exclusive before.
    pub(super) shared_from: Option<u64>,
    /// When its release was sent, and until when the lock was valid then.
    pub(super) ended: Option<(u64, u64)>,
    /// When the release was over, and how it went.
    pub(super) out: Option<(u64, String)>,
}

/// What was done to one process.
#[derive(Clone, Debug, Default)]
pub(super) struct Life {
    /// From, to.
    pub(super) stops: Vec<(u64, u64)>,
    pub(super) killed: bool,
}

/// The logs of all processes of a run.
#[derive(Clone, Debug, Default)]
pub struct History {
    pub(super) requests: Vec<Request>,
    pub(super) lives: BTreeMap<String, Life>,
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
        Ok(history)
    }

    /// Adds the log of one process.
    pub(super) fn add(&mut self, process: &str, log: &str) -> Result<(), String> {
        let mut requests: BTreeMap<u64, Request> = BTreeMap::new();
        let mut life = Life::default();
        // A killed process may have left half a line.
        let whole = log.rfind('\n').map_or("", |end| &log[..end]);
        for text in whole.lines() {
            let line = Line::parse(text).ok_or_else(|| text.to_owned())?;
            apply(process, line, &mut requests, &mut life).ok_or_else(|| text.to_owned())?;
        }
        self.requests.extend(requests.into_values());
        self.lives.insert(process.to_owned(), life);
        Ok(())
    }
}

/// `None` if the event can't follow those before it.
fn apply(process: &str, line: Line, requests: &mut BTreeMap<u64, Request>, life: &mut Life) -> Option<()> {
    let Line { id, at, valid_until, event } = line;
    match event {
        Event::Ask { key, kind, mode, wait } => {
            let request = Request {
                id: format!("{process}/{id}"),
                process: process.to_owned(),
                key,
                kind,
                mode,
                wait,
                asked: at,
                answered: None,
                refused: None,
                grant: None,
            };
            return requests.insert(id, request).is_none().then_some(());
        }
        Event::Stopped => life.stops.push((at, u64::MAX)),
        Event::Continued => life.stops.last_mut()?.1 = at,
        Event::Killed => life.killed = true,
        Event::Got { token } => {
            let request = requests.get_mut(&id)?;
            request.answered = Some(at);
            request.grant =
                Some(Granted { token, at, to: valid_until, shared_from: None, ended: None, out: None });
        }
        Event::No { why } => {
            let request = requests.get_mut(&id)?;
            request.answered = Some(at);
            request.refused = Some(why);
        }
        Event::Left => requests.get_mut(&id)?.answered = Some(at),
        Event::Held => {
            let grant = requests.get_mut(&id)?.grant.as_mut()?;
            // Renewed meanwhile, or lost: then it was valid up to what was known before.
            if valid_until > at {
                grant.to = grant.to.max(valid_until);
            }
        }
        Event::Shared => requests.get_mut(&id)?.grant.as_mut()?.shared_from = Some(at),
        Event::End => {
            let grant = requests.get_mut(&id)?.grant.as_mut()?;
            grant.ended = Some((at, valid_until));
            // Valid until it was given back; or lost on the way, and then up to what was known before.
            grant.to = if valid_until > at { at } else { at.min(grant.to) };
        }
        Event::Out { how } => requests.get_mut(&id)?.grant.as_mut()?.out = Some((at, how)),
    }
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        let folder = tempfile::tempdir().unwrap();
        let writer = Writer::open(&folder.path().join("0.0.log")).unwrap();
        let second = || Duration::from_secs(1);
        let wait = Duration::from_millis(250);
        let (short, once) = (Kind::Short, Kind::Try);
        let (key, mode) = ("a b".to_owned(), Mode::Exclusive);
        writer.note(1, &Event::Ask { key, kind: short, mode, wait }, || Duration::ZERO);
        writer.note(1, &Event::Got { token: 7 }, second);
        writer.note(1, &Event::Held, second);
        writer.note(1, &Event::Shared, second);
        writer.note(1, &Event::End, second);
        writer.note(1, &Event::Out { how: "lost by lease".to_owned() }, || Duration::ZERO);
        let (key, mode) = ("b".to_owned(), Mode::Shared);
        writer.note(2, &Event::Ask { key, kind: once, mode, wait }, || Duration::ZERO);
        writer.note(2, &Event::No { why: "busy".to_owned() }, || Duration::ZERO);
        writer.note(0, &Event::Stopped, || Duration::ZERO);
        writer.note(0, &Event::Continued, || Duration::ZERO);
        writer.note(0, &Event::Killed, || Duration::ZERO);

        let history = History::read(folder.path()).unwrap();
        let [first, second] = &history.requests[..] else { panic!("{history:?}") };
        assert_eq!((first.key.as_str(), first.kind, first.wait), ("a b", Kind::Short, wait));
        let grant = first.grant.as_ref().unwrap();
        assert_eq!((grant.token, Some(grant.to)), (7, grant.ended.map(|(at, _)| at)));
        assert_eq!(grant.out.as_ref().unwrap().1, "lost by lease");
        assert!(grant.shared_from.is_some_and(|from| from <= grant.to));
        assert_eq!((second.id.as_str(), second.refused.as_deref()), ("0.0/2", Some("busy")));
        assert_eq!((first.mode, second.mode), (Mode::Exclusive, Mode::Shared));
        let life = &history.lives["0.0"];
        assert!(life.killed && life.stops.len() == 1 && life.stops[0].1 < u64::MAX, "{life:?}");
    }

    #[test]
    fn half_a_line_at_the_end_is_left_out_and_anything_else_refused() {
        let mut history = History::default();
        history.add("p", "1 10 10 ask try 0 a\n1 20 90 go").unwrap();
        assert_eq!(history.requests.len(), 1);
        assert!(history.add("p", "nonsense\n").is_err());
        assert!(history.add("p", "1 20 90 got 5\n").is_err(), "nobody has asked");
    }

    #[test]
    fn a_window_ends_with_what_is_known_of_it() {
        let to = |events: &str| {
            let mut history = History::default();
            history.add("p", &format!("1 10 10 ask try 0 a\n{events}")).unwrap();
            history.requests[0].grant.as_ref().unwrap().to
        };
        assert_eq!(to("1 20 90 got 5\n"), 90, "killed at work");
        assert_eq!(to("1 20 90 got 5\n1 50 150 held\n"), 150, "renewed and killed");
        assert_eq!(to("1 20 90 got 5\n1 50 150 held\n1 200 200 held\n"), 150, "stopped, and lost meanwhile");
        assert_eq!(to("1 20 90 got 5\n1 60 90 end\n"), 60, "given back");
        assert_eq!(to("1 20 90 got 5\n1 200 200 end\n"), 90, "given back when it was lost");
        assert_eq!(to("1 20 20 got 5\n1 30 30 end\n"), 20, "never valid");
    }
}
