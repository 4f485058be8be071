//! Runs programs, and keeps the lines about failures, to print them again at the end of all output.

use std::cmp::Ordering;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use lock_tests::process::Process;

use crate::test::Outcome;

/// Maximum number of lines that are printed again for one test program.
const LINES: usize = 200;

/// Maximum time for a program. A test that hangs must not hang CI, nor hide the results of other
/// parts.
const LIMIT: Duration = Duration::from_secs(25 * 60);

/// Where the output of programs goes.
#[derive(Clone, Debug)]
pub(crate) enum Output {
    /// To ours, line by line.
    Live,
    /// Into a buffer, which is printed all at once.
    Kept(Arc<Mutex<Vec<u8>>>),
}

impl Output {
    pub(crate) fn kept() -> Self {
        Self::Kept(Arc::default())
    }

    pub(crate) fn line(&self, line: &str) {
        self.bytes(format!("{line}\n").as_bytes());
    }

    fn bytes(&self, bytes: &[u8]) {
        match self {
            Self::Live => print(bytes),
            Self::Kept(kept) => {
                kept.lock().unwrap_or_else(PoisonError::into_inner).extend_from_slice(bytes);
            }
        }
    }

    /// Prints the kept output.
    pub(crate) fn flush(&self) {
        print(&self.take());
    }

    /// Takes the kept output.
    pub(crate) fn take(&self) -> Vec<u8> {
        match self {
            Self::Live => Vec::new(),
            Self::Kept(kept) => std::mem::take(&mut *kept.lock().unwrap_or_else(PoisonError::into_inner)),
        }
    }
}

/// Prints all of it without other output in between.
fn print(bytes: &[u8]) {
    let mut stdout = std::io::stdout().lock();
    // Nobody may be there to read it.
    let _ = stdout.write_all(bytes).and_then(|()| stdout.flush());
}

/// Runs `command`. If it fails, the tests' own messages follow the first line of the reason.
pub(crate) fn run(command: &mut Command, output: &Output) -> Outcome {
    run_for(command, output, Some(LIMIT))
}

/// Runs `command` with another limit, or without one.
pub(crate) fn run_for(command: &mut Command, output: &Output, limit: Option<Duration>) -> Outcome {
    match execute(command, output, Stdout::Shown, limit) {
        Ok(_) => Outcome::Ok,
        Err(why) => Outcome::Failed(why),
    }
}

/// Runs `command`, and returns its standard output.
pub(crate) fn read(command: &mut Command, output: &Output) -> Result<String, String> {
    execute(command, output, Stdout::Returned, Some(LIMIT))
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Stdout {
    Shown,
    Returned,
}

fn execute(
    command: &mut Command,
    output: &Output,
    stdout: Stdout,
    limit: Option<Duration>,
) -> Result<String, String> {
    let line = line_of(command);
    output.line(&format!("$ {line}"));
    if let Output::Kept(_) = output {
        command.stderr(Stdio::piped());
    }
    let spawned = Process::spawn(command.stdin(Stdio::null()).stdout(Stdio::piped()), None);
    let mut process = spawned.map_err(|error| format!("`{line}`: {error}"))?;
    let shown = (stdout == Stdout::Shown).then(|| output.clone());
    let written = process.stdout().expect("its output is a pipe");
    let reader = thread::spawn(move || pass_on(written, shown.as_ref()));
    let errors = process.stderr().map(|errors| {
        let output = output.clone();
        thread::spawn(move || drop(pass_on(errors, Some(&output))))
    });
    let start = Instant::now();
    let why = loop {
        match process.ended() {
            Some(status) if status.success() => break None,
            Some(status) => break Some(status.to_string()),
            None => {}
        }
        if let Some(limit) = limit.filter(|limit| start.elapsed() >= *limit) {
            process.kill_tree();
            break Some(format!("not done within {limit:?}"));
        }
        thread::sleep(Duration::from_millis(20));
    };
    // A process that a test left running may keep the pipe open.
    let patience = Instant::now() + Duration::from_secs(5);
    let is_read = || reader.is_finished() && errors.as_ref().is_none_or(thread::JoinHandle::is_finished);
    while !is_read() && Instant::now() < patience {
        thread::sleep(Duration::from_millis(5));
    }
    let is_read = reader.is_finished();
    let read = if is_read { reader.join().unwrap_or_default() } else { Passed::default() };
    match why {
        None if !is_read && stdout == Stdout::Returned => {
            Err(format!("`{line}`: something that it started keeps its output open"))
        }
        None if read.ran == Some(0) && command.get_args().any(|arg| arg == "--test-threads") => {
            Err(format!("`{line}`: no test has this name"))
        }
        None => Ok(read.all),
        Some(why) => Err(format!("`{line}`: {why}{}", read.failures)),
    }
}

/// Formats the command for a shell.
fn line_of(command: &Command) -> String {
    let mut line = String::new();
    for (name, value) in command.get_envs().filter_map(|(name, value)| Some((name, value?))) {
        // Variables that cargo itself would set are noise.
        if !name.to_string_lossy().starts_with("CARGO") {
            line.push_str(&format!("{}={} ", name.display(), value.display()));
        }
    }
    let program = Path::new(command.get_program()).file_name().unwrap_or_default();
    line.push_str(&program.to_string_lossy());
    for arg in command.get_args() {
        line.push(' ');
        line.push_str(&arg.to_string_lossy());
    }
    line
}

/// The output of a program.
#[derive(Debug, Default)]
struct Passed {
    /// All of it, if it was not shown.
    all: String,
    /// The lines about failures, each after a line break.
    failures: String,
    /// The number of tests that the program announced, if it runs tests.
    ran: Option<u64>,
}

fn pass_on(from: impl Read, shown: Option<&Output>) -> Passed {
    let mut failures = Failures::default();
    let mut from = BufReader::new(from);
    let (mut line, mut all, mut ran) = (Vec::new(), String::new(), None);
    while from.read_until(b'\n', &mut line).is_ok_and(|read| read > 0) {
        let text = String::from_utf8_lossy(&line);
        failures.line(text.trim_end());
        let number =
            text.strip_prefix("running ").and_then(|rest| rest.split(' ').next()?.parse::<u64>().ok());
        ran = number.map_or(ran, |number| Some(ran.unwrap_or(0) + number));
        match shown {
            Some(output) => output.bytes(&line),
            None => all.push_str(&text),
        }
        line.clear();
    }
    let failures = failures.into_lines().iter().map(|line| format!("\n{line}")).collect();
    Passed { all, failures, ran }
}

/// Reads the lines of an output and keeps those about failures.
#[derive(Debug, Default)]
struct Failures {
    said: Vec<String>,
    /// Number of kept lines in the current list of failures; `None` outside of one.
    open: Option<usize>,
}

impl Failures {
    fn line(&mut self, line: &str) {
        if line.starts_with("test result: ") {
            self.open = None;
        } else if line == "failures:" {
            // The second list has the names. A cut of the first one takes none of them.
            self.said.extend(self.open.map(|_| line.to_owned()));
            self.open = Some(0);
        } else if let Some(kept) = &mut self.open {
            *kept += 1;
            match (*kept).cmp(&(LINES + 1)) {
                Ordering::Less => self.said.push(line.to_owned()),
                Ordering::Equal => self.said.push("(more of it above)".to_owned()),
                Ordering::Greater => {}
            }
        }
    }

    /// Returns the kept lines in order.
    fn into_lines(self) -> Vec<String> {
        self.said
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failures(output: &str) -> Vec<String> {
        let mut failures = Failures::default();
        output.lines().for_each(|line| failures.line(line));
        failures.into_lines()
    }

    #[test]
    fn what_failed_is_kept_and_what_passed_is_not() {
        let said = failures(
            "running 2 tests\ntest a ... ok\ntest b ... FAILED\n\nsuccesses:\n\n---- a stdout ----\nfast\n\n\
             failures:\n\n---- b stdout ----\nboom\n\n\nfailures:\n    b\n\n\
             test result: FAILED. 1 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.01s\n\
             running 1 test\ntest c ... ok\n\n\
             test result: ok. 1 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.01s",
        );
        let said = said.join("\n");
        assert!(said.contains("---- b stdout ----\nboom") && said.contains("    b"), "{said}");
        assert!(!said.contains("fast") && !said.contains("running"), "{said}");
    }

    #[test]
    fn a_program_that_dies_while_it_speaks_is_quoted_too() {
        assert_eq!(failures("failures:\n---- b stdout ----"), ["---- b stdout ----"]);
    }

    #[test]
    fn a_long_failure_is_cut() {
        let said = failures(&format!("failures:\n{}", "line\n".repeat(LINES + 3)));
        assert_eq!(said.len(), LINES + 1);
        assert_eq!(said.last().map(String::as_str), Some("(more of it above)"));
    }

    #[test]
    fn names_are_kept_behind_a_long_failure() {
        let said = failures(&format!("failures:\n{}failures:\n    a::b\n", "line\n".repeat(LINES + 3)));
        assert_eq!(said[LINES..], ["(more of it above)", "failures:", "    a::b"]);
    }
}
