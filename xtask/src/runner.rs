//! Runs cargo, and keeps what its output says about failures, to be said once more at the end of all that is printed.

use std::cmp::Ordering;
use std::io::{BufRead, BufReader, Read};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use lock_tests::process::Process;

use crate::test::Outcome;

/// So many lines are said again of one test program, at most.
const LINES: usize = 200;

/// Nothing takes that long; a test that hangs must not hang CI, nor hide what the other parts say.
const LIMIT: Duration = Duration::from_secs(25 * 60);

/// Runs `command`, a cargo, with its output on ours. When it fails, what the tests said follows the first line of why.
pub(crate) fn run(command: &mut Command) -> Outcome {
    let mut line = String::new();
    for (name, value) in command.get_envs().filter_map(|(name, value)| Some((name, value?))) {
        line.push_str(&format!("{}={} ", name.display(), value.display()));
    }
    line.push_str("cargo");
    for arg in command.get_args() {
        line.push(' ');
        line.push_str(&arg.to_string_lossy());
    }
    println!("$ {line}");
    let mut process = match Process::spawn(command.stdout(Stdio::piped()), None) {
        Ok(process) => process,
        Err(error) => return Outcome::Failed(format!("`{line}`: {error}")),
    };
    let output = process.stdout().expect("its output is a pipe");
    let reader = thread::spawn(move || pass_on(output));
    let deadline = Instant::now() + LIMIT;
    let why = loop {
        match process.ended() {
            Some(status) if status.success() => break None,
            Some(status) => break Some(status.to_string()),
            None if Instant::now() >= deadline => {
                process.kill_tree();
                break Some(format!("not done within {LIMIT:?}"));
            }
            None => thread::sleep(Duration::from_millis(20)),
        }
    };
    // What a test left running may keep the pipe open.
    let patience = Instant::now() + Duration::from_secs(5);
    while !reader.is_finished() && Instant::now() < patience {
        thread::sleep(Duration::from_millis(5));
    }
    let Some(why) = why else { return Outcome::Ok };
    let mut why = format!("`{line}`: {why}");
    if reader.is_finished() {
        for said in reader.join().unwrap_or_default() {
            why.push('\n');
            why.push_str(&said);
        }
    }
    Outcome::Failed(why)
}

/// Prints what comes from `output`, and gives back what it says about failures.
fn pass_on(output: impl Read) -> Vec<String> {
    let mut failures = Failures::default();
    let mut output = BufReader::new(output);
    let mut line = Vec::new();
    while output.read_until(b'\n', &mut line).is_ok_and(|read| read > 0) {
        let text = String::from_utf8_lossy(&line);
        print!("{text}");
        failures.line(text.trim_end());
        line.clear();
    }
    failures.into_lines()
}

/// Takes the lines of an output and keeps those that say what failed.
#[derive(Debug, Default)]
struct Failures {
    said: Vec<String>,
    /// Lines of the program at hand that are kept; `None` while it does not speak of failures.
    open: Option<usize>,
}

impl Failures {
    fn line(&mut self, line: &str) {
        if line.starts_with("test result: ") {
            self.open = None;
        } else if let Some(kept) = &mut self.open {
            *kept += 1;
            match (*kept).cmp(&(LINES + 1)) {
                Ordering::Less => self.said.push(line.to_owned()),
                Ordering::Equal => self.said.push("(more of it above)".to_owned()),
                Ordering::Greater => {}
            }
        } else if line == "failures:" {
            self.open = Some(0);
        }
    }

    /// All of it, in the order in which it came.
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
}
