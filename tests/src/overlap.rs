//! Proof that a lock excluded. Several processes, Java programs included, log their sections under
//! the lock, and two of the checkers of [histories](crate::history) judge the log.
//!
//! Every section writes one line when it enters and one when it leaves. Each line is a single
//! `write` to a file opened for appending, so lines of several processes stay whole without a lock.
//! Times are on the clock that all processes share ([`now_nanos`]).
//!
//! A section that never left, because its process was killed, lasts until its last known validity
//! ends. A section that entered after its lock had ended, because its process was stopped, does not
//! count. A section without a token writes `-` for it. Readers add `shared`: they may be inside
//! together, and share a token.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::clock::now_nanos;
use crate::history::{Window, beside, not_grown};

/// Writes the sections of this process to the common log.
#[derive(Debug)]
pub struct Recorder {
    file: File,
}

/// Numbers the sections of this process across all recorders.
static NEXT: AtomicU64 = AtomicU64::new(0);

/// A section that has been entered.
#[derive(Debug)]
#[must_use = "a section is left by `leave`"]
pub struct Section {
    id: String,
    key: String,
    token: u64,
    shared: bool,
}

impl Recorder {
    /// Opens or creates the log.
    ///
    /// # Errors
    ///
    /// When the file can't be opened.
    pub fn open(path: &Path) -> io::Result<Self> {
        let file = OpenOptions::new().create(true).append(true).open(path)?;
        Ok(Self { file })
    }

    /// Notes the beginning of a section; the first call under the lock. `remaining` returns how
    /// long the lock is still known to be valid.
    ///
    /// # Panics
    ///
    /// When the log can't be written, or the key has blanks.
    pub fn enter(&self, key: &str, token: u64, remaining: impl FnOnce() -> Duration) -> Section {
        self.begin(key, token, false, remaining)
    }

    /// Like [`enter`](Self::enter), for a reader, which other readers may join.
    ///
    /// # Panics
    ///
    /// As [`enter`](Self::enter).
    pub fn enter_shared(&self, key: &str, token: u64, remaining: impl FnOnce() -> Duration) -> Section {
        self.begin(key, token, true, remaining)
    }

    fn begin(&self, key: &str, token: u64, shared: bool, remaining: impl FnOnce() -> Duration) -> Section {
        assert!(!key.contains(char::is_whitespace), "keys of the overlap log have no blanks: {key:?}");
        let n = NEXT.fetch_add(1, Ordering::Relaxed);
        let section =
            Section { id: format!("{}-{n}", std::process::id()), key: key.to_owned(), token, shared };
        self.write("enter", &section, remaining);
        section
    }

    /// Notes the end of a section; the last call under the lock.
    ///
    /// # Panics
    ///
    /// When the log can't be written.
    #[expect(clippy::needless_pass_by_value, reason = "a section is left once")]
    pub fn leave(&self, section: Section, remaining: impl FnOnce() -> Duration) {
        self.write("leave", &section, remaining);
    }

    fn write(&self, event: &str, section: &Section, remaining: impl FnOnce() -> Duration) {
        // The clock first: then the computed deadline is never later than the real one.
        let now = now_nanos();
        let remaining = u64::try_from(remaining().as_nanos()).unwrap_or(u64::MAX);
        let valid_until = now.saturating_add(remaining);
        let Section { id, key, token, shared } = section;
        let shared = if *shared { " shared" } else { "" };
        let line = format!("{event} {id} {key} {token} {now} {valid_until}{shared}\n");
        (&self.file).write_all(line.as_bytes()).expect("the overlap log can be written");
    }
}

/// The sections of a log, and the violations found in it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Number of sections entered, by key.
    pub sections: BTreeMap<String, usize>,
    /// Sections of one key that were inside at the same time, unless all of them were readers.
    pub overlaps: Vec<String>,
    /// Sections whose token was not larger than every earlier one of their key. A reader may have
    /// the token of a writer that was downgraded. Readers are not compared with each other. A
    /// reader that joins a hold gets its token, and others may have entered with a larger one
    /// meanwhile.
    pub tokens: Vec<String>,
}

impl Report {
    /// Reads and judges a log.
    ///
    /// # Errors
    ///
    /// When the file can't be read, or a line of it is not an event.
    pub fn read(path: &Path) -> io::Result<Self> {
        Self::of(&std::fs::read_to_string(path)?)
            .map_err(|line| io::Error::new(io::ErrorKind::InvalidData, format!("not an event: {line:?}")))
    }

    /// Returns how many sections were entered.
    #[must_use]
    pub fn total(&self) -> usize {
        self.sections.values().sum()
    }

    /// Fails the test if there is a violation.
    ///
    /// # Panics
    ///
    /// When the lock did not exclude, or its tokens did not grow.
    #[track_caller]
    pub fn assert_clean(&self) {
        assert!(self.overlaps.is_empty() && self.tokens.is_empty(), "{self}");
    }

    fn of(log: &str) -> Result<Self, String> {
        let mut intervals: HashMap<String, Interval> = HashMap::new();
        for line in log.lines() {
            let event = Event::parse(line).ok_or_else(|| line.to_owned())?;
            if event.entering {
                let interval = Interval {
                    key: event.key,
                    token: event.token,
                    shared: event.shared,
                    from: event.at,
                    to: event.valid_until,
                    id: event.id.clone(),
                };
                intervals.insert(event.id, interval);
            } else {
                let interval = intervals.get_mut(&event.id).ok_or_else(|| line.to_owned())?;
                // Nothing remaining: the lock was lost on the way, and anything after its last
                // known deadline may overlap. Otherwise it was valid, perhaps renewed, until the
                // section ended.
                let lost = event.valid_until <= event.at;
                interval.to = if lost { event.at.min(interval.to) } else { event.at };
            }
        }
        let mut keys: BTreeMap<String, Vec<Interval>> = BTreeMap::new();
        for interval in intervals.into_values() {
            keys.entry(interval.key.clone()).or_default().push(interval);
        }
        let mut report = Self::default();
        for (key, list) in keys {
            report.add(key, list);
        }
        Ok(report)
    }

    /// Judges all sections of one key.
    pub(crate) fn add(&mut self, key: String, mut list: Vec<Interval>) {
        self.sections.insert(key, list.len());
        list.retain(|interval| interval.from < interval.to);
        list.sort_by_key(|interval| interval.from);
        let windows: Vec<Window<'_>> = list.iter().map(Interval::window).collect();
        let key = list.first().map_or("", |interval| &interval.key);
        let pairs = beside(&windows);
        self.overlaps.extend(pairs.iter().map(|(later, other)| format!("{key}: {later} while {other}")));
        self.tokens
            .extend(not_grown(&windows, &HashSet::new()).into_iter().map(|line| format!("{key}: {line}")));
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const SHOWN: usize = 5;
        writeln!(
            f,
            "{} sections on {} keys: {} overlaps, {} tokens that did not grow",
            self.total(),
            self.sections.len(),
            self.overlaps.len(),
            self.tokens.len()
        )?;
        for line in self.overlaps.iter().take(SHOWN).chain(self.tokens.iter().take(SHOWN)) {
            writeln!(f, "  {line}")?;
        }
        Ok(())
    }
}

/// The time that a section was inside.
#[derive(Clone, Debug)]
pub(crate) struct Interval {
    pub(crate) id: String,
    pub(crate) key: String,
    /// Redisson's locks have no token, except the fenced lock.
    pub(crate) token: Option<u64>,
    /// Whether it is a reader.
    pub(crate) shared: bool,
    pub(crate) from: u64,
    pub(crate) to: u64,
}

impl Interval {
    fn window(&self) -> Window<'_> {
        let Self { id, token, shared, from, to, .. } = self;
        let process = id.rsplit_once('-').map_or(id.as_str(), |(process, _)| process);
        let (token, shared, from, to) = (*token, *shared, *from, *to);
        Window { id, process, token, shared, from, to, granted: from, asked: from, downgraded: false }
    }
}

struct Event {
    entering: bool,
    id: String,
    key: String,
    token: Option<u64>,
    shared: bool,
    at: u64,
    valid_until: u64,
}

impl Event {
    fn parse(line: &str) -> Option<Self> {
        let mut words = line.split(' ');
        let entering = match words.next()? {
            "enter" => true,
            "leave" => false,
            _ => return None,
        };
        let mut event = Self {
            entering,
            shared: false,
            id: words.next()?.to_owned(),
            key: words.next()?.to_owned(),
            token: match words.next()? {
                "-" => None,
                token => Some(token.parse().ok()?),
            },
            at: words.next()?.parse().ok()?,
            valid_until: words.next()?.parse().ok()?,
        };
        match words.next() {
            None => {}
            Some("shared") => event.shared = true,
            Some(_) => return None,
        }
        words.next().is_none().then_some(event)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    fn report(lines: &[&str]) -> Report {
        Report::of(&lines.join("\n")).unwrap()
    }

    #[test]
    fn sections_one_after_the_other_are_clean() {
        let report = report(&[
            "enter 1-0 a 10 100 900",
            "leave 1-0 a 10 200 900",
            "enter 2-0 a 11 200 900",
            "enter 2-1 b 5 150 900",
            "leave 2-0 a 11 300 900",
            "leave 2-1 b 5 300 900",
        ]);
        assert_eq!(report.total(), 3);
        report.assert_clean();
    }

    #[test]
    fn an_overlap_is_found_even_behind_a_short_section() {
        let report = report(&[
            "enter 1-0 a 10 100 900",
            "enter 2-0 a 11 110 900",
            "leave 2-0 a 11 120 900",
            "enter 3-0 a 12 180 900",
            "leave 1-0 a 10 200 900",
            "leave 3-0 a 12 210 900",
        ]);
        assert_eq!(report.overlaps.len(), 2, "{report}");
        assert!(report.tokens.is_empty());
    }

    #[test]
    fn readers_are_inside_together_and_share_a_token() {
        let report = report(&[
            "enter 1-0 a 10 100 900 shared",
            "enter 2-0 a 11 110 900 shared",
            "enter 3-0 a 10 120 900 shared",
            "leave 1-0 a 10 130 900 shared",
            "leave 2-0 a 11 140 900 shared",
            "leave 3-0 a 10 150 900 shared",
            "enter 4-0 a 12 150 900",
            "leave 4-0 a 12 160 900",
            "enter 5-0 a - 160 900 shared",
            "leave 5-0 a - 170 900 shared",
        ]);
        assert_eq!(report.total(), 5);
        report.assert_clean();
    }

    #[test]
    fn a_reader_beside_a_writer_is_found_whoever_was_there_first() {
        let report = report(&[
            "enter 1-0 a 10 100 900 shared",
            "enter 1-1 a 10 105 900 shared",
            "enter 2-0 a 11 110 900",
            "leave 1-1 a 10 106 900 shared",
            "leave 2-0 a 11 120 900",
            "leave 1-0 a 10 130 900 shared",
            "enter 3-0 b 5 100 900",
            "enter 4-0 b 6 110 900 shared",
            "enter 4-1 b 6 115 900 shared",
            "leave 4-0 b 6 120 900 shared",
            "leave 4-1 b 6 120 900 shared",
            "leave 3-0 b 5 130 900",
        ]);
        assert_eq!(report.overlaps.len(), 3, "{report}");
        assert!(report.tokens.is_empty(), "{report}");
    }

    #[test]
    fn a_reader_below_a_writer_and_a_writer_with_a_readers_token_are_found() {
        let report = report(&[
            "enter 1-0 a 10 100 900",
            "leave 1-0 a 10 110 900",
            // The holder downgrades.
            "enter 1-1 a 10 110 900 shared",
            "leave 1-1 a 10 115 900 shared",
            "enter 2-0 a 9 120 900 shared",
            "leave 2-0 a 9 130 900 shared",
            "enter 3-0 a 10 140 900",
            "leave 3-0 a 10 150 900",
        ]);
        assert_eq!(report.tokens.len(), 2, "{report}");
    }

    #[test]
    fn a_token_that_does_not_grow_is_found() {
        let report = report(&[
            "enter 1-0 a 10 100 900",
            "leave 1-0 a 10 110 900",
            "enter 2-0 a 10 120 900",
            "leave 2-0 a 10 130 900",
            "enter 3-0 a 9 140 900",
            "leave 3-0 a 9 150 900",
        ]);
        assert!(report.overlaps.is_empty());
        assert_eq!(report.tokens.len(), 2, "{report}");
    }

    #[test]
    fn sections_without_a_token_are_judged_by_their_times_alone() {
        let report = report(&[
            "enter 1-0 a 10 100 900",
            "leave 1-0 a 10 110 900",
            "enter 2-0 a - 120 900",
            "leave 2-0 a - 130 900",
            "enter 2-1 a - 125 900",
            "leave 2-1 a - 140 900",
            "enter 3-0 a 10 150 900",
            "leave 3-0 a 10 160 900",
        ]);
        assert_eq!((report.overlaps.len(), report.tokens.len()), (1, 1), "{report}");
    }

    #[test]
    fn a_killed_holder_counts_as_inside_until_its_deadline() {
        let early = report(&["enter 1-0 a 10 100 500", "enter 2-0 a 11 499 900"]);
        assert_eq!(early.overlaps.len(), 1);
        report(&["enter 1-0 a 10 100 500", "enter 2-0 a 11 500 900"]).assert_clean();
    }

    #[test]
    fn a_holder_past_its_deadline_may_overlap_and_a_renewed_one_may_not() {
        // Left at 800 without remaining validity: the deadline was 500.
        report(&["enter 1-0 a 10 100 500", "enter 2-0 a 11 600 900", "leave 1-0 a 10 800 800"])
            .assert_clean();
        let renewed =
            report(&["enter 1-0 a 10 100 500", "enter 2-0 a 11 600 900", "leave 1-0 a 10 650 1200"]);
        assert_eq!(renewed.overlaps.len(), 1);
    }

    #[test]
    fn a_holder_that_comes_too_late_is_not_inside() {
        let report = report(&[
            "enter 2-0 a 11 100 900",
            "enter 1-0 a 10 150 150",
            "leave 1-0 a 10 200 200",
            "leave 2-0 a 11 300 900",
        ]);
        assert_eq!(report.total(), 2);
        report.assert_clean();
    }

    #[test]
    fn a_line_that_is_not_ours_is_refused() {
        assert!(Report::of("enter 1-0 a 10 100").is_err());
        assert!(Report::of("leave 1-0 a 10 100 900").is_err());
    }

    /// Runs sections on threads under `lock`, with a yield in the middle.
    fn run(lock: impl Fn(&mut dyn FnMut()) + Send + Sync + 'static) -> Report {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        let lock = Arc::new(lock);
        let tokens = Arc::new(AtomicU64::new(1));
        let threads: Vec<_> = (0..4)
            .map(|_| {
                let (lock, tokens) = (lock.clone(), tokens.clone());
                let recorder = Recorder::open(&path).unwrap();
                std::thread::spawn(move || {
                    for _ in 0..50 {
                        lock(&mut || {
                            let section =
                                recorder.enter("a", tokens.fetch_add(1, Ordering::Relaxed), || LONG);
                            std::thread::sleep(Duration::from_micros(200));
                            recorder.leave(section, || LONG);
                        });
                    }
                })
            })
            .collect();
        for thread in threads {
            thread.join().unwrap();
        }
        Report::read(&path).unwrap()
    }

    #[test]
    fn a_working_lock_is_clean_and_a_broken_one_is_not() {
        let mutex = Mutex::new(());
        let report = run(move |body| {
            let _guard = mutex.lock().unwrap();
            body();
        });
        assert_eq!(report.total(), 200);
        report.assert_clean();

        let broken = run(|body| body());
        assert!(!broken.overlaps.is_empty(), "{broken}");
    }
}
