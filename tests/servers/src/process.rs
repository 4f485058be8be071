//! Child processes that are signalled and ended through their own handle.

use std::cell::Cell;
use std::ffi::OsStr;
use std::io::{self, BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStderr, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, WaitIdOptions, kill_process};
#[cfg(target_os = "linux")]
use rustix::process::{WaitId, waitid};

/// Kills a process and removes its folder when *this* process dies first: by SIGKILL, by SIGTERM,
/// or by an abort. A shell waits on a pipe that closes when this process dies.
#[derive(Debug)]
struct Sentinel {
    child: Child,
}

impl Sentinel {
    fn watch(pid: u32, folder: Option<&Path>) -> io::Result<Self> {
        // Ctrl-C goes to the whole group, and the sentinel must outlive it. `read` returns at the
        // end of the pipe.
        const SCRIPT: &str = r#"trap '' INT TERM HUP
if read -r _; then exit 0; fi
kill -9 "$1" 2>/dev/null
[ -z "$2" ] || rm -rf -- "$2""#;
        let child = Command::new("sh")
            .args(["-c", SCRIPT, "sentinel"])
            .arg(pid.to_string())
            .arg(folder.map_or(OsStr::new(""), Path::as_os_str))
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()?;
        Ok(Self { child })
    }

    /// Tells the sentinel, with a line on the pipe, that it has nothing left to do.
    fn dismiss(&mut self) {
        if let Some(mut stdin) = self.child.stdin.take() {
            let _ = stdin.write_all(b"done\n");
        }
        let _ = self.child.wait();
    }
}

thread_local! {
    static CPU: Cell<Duration> = const { Cell::new(Duration::ZERO) };
}

/// Returns the processor time of all [`Process`]es that this thread has seen end, and of the
/// children that they have waited for. Always zero outside Linux.
#[must_use]
pub fn cpu_of_ended() -> Duration {
    CPU.get()
}

/// Adds the processor time of a child that has ended and has not been waited for.
#[cfg(target_os = "linux")]
fn count_cpu(pid: u32) {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let ticks = u32::try_from(rustix::param::clock_ticks_per_second()).unwrap_or(100);
    CPU.set(CPU.get() + Duration::from_secs(ticks_of(&stat)) / ticks.max(1));
}

/// Returns the sum of fields 14 to 17 of proc_pid_stat(5): user and system time of a process and
/// its waited-for children. Field 2, the program's name, may contain blanks and parentheses.
#[cfg(target_os = "linux")]
fn ticks_of(stat: &str) -> u64 {
    let fields = stat.rsplit_once(')').map_or("", |(_, fields)| fields);
    fields.split_whitespace().skip(11).take(4).filter_map(|field| field.parse::<u64>().ok()).sum()
}

/// A child process that dies with its handle.
#[derive(Debug)]
pub struct Process {
    child: Child,
    sentinel: Sentinel,
    name: String,
    /// Whether the process has been waited for: its id may belong to another process by now.
    over: bool,
}

impl Process {
    /// Starts `command`. The sentinel removes `folder` if this process dies.
    ///
    /// # Errors
    ///
    /// When the program can't be started.
    pub fn spawn(command: &mut Command, folder: Option<&Path>) -> io::Result<Self> {
        let name = Path::new(command.get_program())
            .file_name()
            .map_or_else(String::new, |name| name.to_string_lossy().into_owned());
        let mut child = command.spawn()?;
        match Sentinel::watch(child.id(), folder) {
            Ok(sentinel) => Ok(Self { child, sentinel, name, over: false }),
            Err(error) => {
                let _ = child.kill();
                let _ = child.wait();
                Err(error)
            }
        }
    }

    /// Returns the process id.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Returns the process's output if it goes to a pipe; only the first time.
    pub fn stdout(&mut self) -> Option<ChildStdout> {
        self.child.stdout.take()
    }

    /// Returns the process's error output if it goes to a pipe; only the first time.
    pub fn stderr(&mut self) -> Option<ChildStderr> {
        self.child.stderr.take()
    }

    /// Returns the process's input if it comes from a pipe; only the first time.
    pub fn stdin(&mut self) -> Option<ChildStdin> {
        self.child.stdin.take()
    }

    /// Returns the exit status, if the process has ended.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        self.look(WaitIdOptions::NOHANG);
        let status = self.child.try_wait().expect("a child can be asked for its status");
        self.over |= status.is_some();
        status
    }

    /// Counts the processor time of the process if it has ended. Must come before the status is
    /// taken, because the system then forgets the process.
    fn look(&self, options: WaitIdOptions) {
        #[cfg(target_os = "linux")]
        if let Some(pid) = self.pid().filter(|_| !self.over) {
            let options = options | WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
            if let Ok(Some(_)) = waitid(WaitId::Pid(pid), options) {
                count_cpu(self.child.id());
            }
        }
        #[cfg(not(target_os = "linux"))]
        let _ = options;
    }

    fn pid(&self) -> Option<Pid> {
        i32::try_from(self.child.id()).ok().and_then(Pid::from_raw)
    }

    /// Waits until the process has ended by itself.
    ///
    /// # Panics
    ///
    /// When it has not ended within `within`.
    #[track_caller]
    pub fn wait(&mut self, within: Duration) -> ExitStatus {
        let deadline = Instant::now() + within;
        loop {
            if let Some(status) = self.ended() {
                return status;
            }
            assert!(Instant::now() < deadline, "{} did not end within {within:?}", self.name);
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Sends `signal` if the process has not ended. Its id cannot be reused until it is waited for.
    fn signal(&mut self, signal: Signal) {
        if self.ended().is_none() {
            let pid = self.pid().expect("a process id");
            kill_process(pid, signal).expect("a child can be signalled");
        }
    }

    /// Sends SIGSTOP, and waits until the process has really stopped.
    pub fn stop(&mut self) {
        self.signal(Signal::STOP);
        #[cfg(target_os = "linux")]
        {
            let stat = format!("/proc/{}/stat", self.child.id());
            crate::eventually_blocking(
                || {
                    let text = std::fs::read_to_string(&stat).unwrap_or_default();
                    // pid (name) state …; the name may contain blanks and parentheses.
                    text.rsplit_once(") ").is_none_or(|(_, rest)| rest.starts_with('T'))
                },
                Duration::from_secs(10),
            );
        }
    }

    /// Sends SIGCONT.
    pub fn cont(&mut self) {
        self.signal(Signal::CONT);
    }

    /// Sends SIGTERM, which asks the process to end.
    pub fn terminate(&mut self) {
        self.signal(Signal::TERM);
    }

    /// Sends SIGINT to this process alone, like Ctrl-C.
    pub fn interrupt(&mut self) {
        self.signal(Signal::INT);
    }

    /// Sends SIGKILL to the process and to all its descendants that the system lists.
    pub fn kill_tree(&mut self) {
        self.stop_tree();
        if self.ended().is_none() {
            signal_descendants(self.child.id(), Signal::KILL);
        }
        self.kill();
    }

    /// Sends SIGSTOP to the process, and then to all its descendants that the system lists.
    pub fn stop_tree(&mut self) {
        if self.ended().is_none() {
            self.stop();
            signal_descendants(self.child.id(), Signal::STOP);
        }
    }

    /// Sends SIGCONT to all descendants of the process, and then to itself.
    pub fn cont_tree(&mut self) {
        if self.ended().is_none() {
            signal_descendants(self.child.id(), Signal::CONT);
            self.cont();
        }
    }

    /// Sends SIGKILL and waits for the end.
    pub fn kill(&mut self) {
        let _ = self.child.kill();
        self.look(WaitIdOptions::empty());
        let _ = self.child.wait();
        self.over = true;
    }
}

/// Sends `signal` to all descendants of `root`. Works on Linux only.
fn signal_descendants(root: u32, signal: Signal) {
    let Ok(root) = i32::try_from(root) else { return };
    let mut found = vec![root];
    let processes: Vec<(i32, i32)> = std::fs::read_dir("/proc")
        .into_iter()
        .flatten()
        .filter_map(|entry| {
            let pid = entry.ok()?.file_name().to_str()?.parse().ok()?;
            let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
            // pid (name) state parent …; the name may contain blanks and parentheses.
            let parent = stat.rsplit_once(") ")?.1.split(' ').nth(1)?.parse().ok()?;
            Some((pid, parent))
        })
        .collect();
    let mut at = 0;
    while let Some(&parent) = found.get(at) {
        found.extend(processes.iter().filter(|(_, of)| *of == parent).map(|(pid, _)| *pid));
        at += 1;
    }
    for pid in found.into_iter().skip(1).filter_map(Pid::from_raw) {
        let _ = kill_process(pid, signal);
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // The process first, then the sentinel. Once the process is waited for, its id may be
        // reused, and the sentinel must not kill whatever has it then.
        self.kill();
        self.sentinel.dismiss();
    }
}

/// A helper program of this package that exchanges lines with the test.
///
/// Tests find the program by `env!("CARGO_BIN_EXE_<name>")`.
///
/// A line that starts with `!` reports a failure; it fails the test that reads it.
#[derive(Debug)]
pub struct Helper {
    process: Process,
    stdin: Option<ChildStdin>,
    lines: Receiver<String>,
}

impl Helper {
    /// Starts `program` with `args`.
    ///
    /// # Panics
    ///
    /// When it can't be started.
    #[track_caller]
    pub fn spawn<S: AsRef<OsStr>>(program: &str, args: impl IntoIterator<Item = S>) -> Self {
        Self::spawn_command(Command::new(program).args(args))
    }

    /// Starts `command`, which may have its own environment.
    ///
    /// # Panics
    ///
    /// When it can't be started.
    #[track_caller]
    pub fn spawn_command(command: &mut Command) -> Self {
        command.env_remove("LOCK_URL").stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::inherit());
        let mut process = Process::spawn(command, None)
            .unwrap_or_else(|error| panic!("can't start {}: {error}", command.get_program().display()));
        let stdin = process.child.stdin.take();
        let stdout = process.child.stdout.take().expect("stdout is piped");
        let (sender, lines) = mpsc::channel();
        std::thread::spawn(move || {
            for line in BufReader::new(stdout).lines() {
                let Ok(line) = line else { break };
                if sender.send(line).is_err() {
                    break;
                }
            }
        });
        Self { process, stdin, lines }
    }

    /// Sends one line.
    ///
    /// # Panics
    ///
    /// When the helper has ended.
    #[track_caller]
    pub fn send(&mut self, line: &str) {
        let stdin = self.stdin.as_mut().expect("the helper's input is open");
        if let Err(error) = writeln!(stdin, "{line}").and_then(|()| stdin.flush()) {
            panic!("{} does not take {line:?}: {error}", self.process.name);
        }
    }

    /// Returns the next line, if one comes within `within`.
    ///
    /// # Panics
    ///
    /// When the line reports a failure, or the helper has ended.
    #[track_caller]
    pub fn try_line(&mut self, within: Duration) -> Option<String> {
        match self.lines.recv_timeout(within) {
            Ok(line) if line.starts_with('!') => panic!("{} says {line}", self.process.name),
            Ok(line) => Some(line),
            Err(RecvTimeoutError::Timeout) => None,
            Err(RecvTimeoutError::Disconnected) => {
                let status = self.process.wait(Duration::from_secs(10));
                panic!("{} ended with {status}", self.process.name)
            }
        }
    }

    /// Returns the next line.
    ///
    /// # Panics
    ///
    /// As [`try_line`](Self::try_line), and when no line comes within `within`.
    #[track_caller]
    pub fn line(&mut self, within: Duration) -> String {
        match self.try_line(within) {
            Some(line) => line,
            None => panic!("{} said nothing within {within:?}", self.process.name),
        }
    }

    /// Sends one line and returns the answer. Waits for half a minute at most.
    #[track_caller]
    pub fn ask(&mut self, line: &str) -> String {
        self.send(line);
        self.line(Duration::from_secs(30))
    }

    /// Closes the helper's input, which makes it end, and waits for the end.
    ///
    /// # Panics
    ///
    /// When it does not end within `within`, or not with status 0.
    #[track_caller]
    pub fn finish(mut self, within: Duration) {
        self.stdin = None;
        let status = self.process.wait(within);
        if !status.success() {
            let said: Vec<_> = self.lines.iter().collect();
            panic!("{} ended with {status} and said {said:?}", self.process.name);
        }
    }

    /// Returns the process, to be signalled.
    pub fn process(&mut self) -> &mut Process {
        &mut self.process
    }

    /// Sends SIGKILL.
    pub fn kill(&mut self) {
        self.process.kill();
    }

    /// Sends SIGSTOP.
    pub fn stop(&mut self) {
        self.process.stop();
    }

    /// Sends SIGCONT.
    pub fn cont(&mut self) {
        self.process.cont();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOON: Duration = Duration::from_secs(20);

    #[test]
    fn a_helper_answers_line_by_line_and_ends_with_its_input() {
        let mut cat = Helper::spawn("cat", [""; 0]);
        assert_eq!(cat.ask("one"), "one");
        assert_eq!(cat.ask("two"), "two");
        cat.finish(SOON);
    }

    #[test]
    fn a_stopped_helper_is_silent_until_it_is_continued() {
        let mut cat = Helper::spawn("cat", [""; 0]);
        assert_eq!(cat.ask("ready"), "ready");
        cat.stop();
        cat.send("late");
        assert_eq!(cat.try_line(Duration::from_millis(100)), None);
        cat.cont();
        assert_eq!(cat.line(SOON), "late");
    }

    #[test]
    #[should_panic(expected = "cat says !broken")]
    fn a_reported_failure_fails_the_test() {
        Helper::spawn("cat", [""; 0]).ask("!broken");
    }

    #[test]
    #[should_panic(expected = "ended with")]
    fn a_dead_helper_is_told_apart_from_a_silent_one() {
        let mut cat = Helper::spawn("cat", [""; 0]);
        cat.kill();
        cat.line(SOON);
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn a_tree_of_processes_is_killed_to_the_leaves() {
        let mut shell = Command::new("sh");
        shell.args(["-c", "(sleep 600 & echo $!; wait) & wait"]).stdout(Stdio::piped());
        let mut process = Process::spawn(&mut shell, None).unwrap();
        let mut leaf = String::new();
        BufReader::new(process.child.stdout.take().unwrap()).read_line(&mut leaf).unwrap();
        let stat = format!("/proc/{}/stat", leaf.trim());
        assert!(Path::new(&stat).exists());
        process.kill_tree();
        // Gone, or dead and not yet waited for by its new parent.
        crate::eventually_blocking(
            || std::fs::read_to_string(&stat).map_or(true, |text| text.contains(") Z ")),
            SOON,
        );
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn processor_time_is_counted_once_however_a_process_ends() {
        assert_eq!(ticks_of("7 (a) b) S 1 7 7 0 -1 4194304 1 2 3 4 50 60 700 80 20 0 1 0 9 0 0"), 890);
        assert_eq!(cpu_of_ended(), Duration::ZERO);
        let work = "i=0; while [ $i -lt 200000 ]; do i=$((i + 1)); done";
        let mut inner =
            Process::spawn(Command::new("sh").args(["-c", &format!("({work}); true")]), None).unwrap();
        inner.wait(SOON);
        let spent = cpu_of_ended();
        assert!(spent > Duration::ZERO);
        drop(inner);
        assert_eq!(cpu_of_ended(), spent);
        let mut busy = Process::spawn(
            Command::new("sh").args(["-c", &format!("{work}; echo; exec sleep 600")]).stdout(Stdio::piped()),
            None,
        )
        .unwrap();
        BufReader::new(busy.stdout().unwrap()).read_line(&mut String::new()).unwrap();
        drop(busy);
        assert!(cpu_of_ended() > spent);
    }

    #[test]
    fn a_child_is_ended_when_its_parent_dies_without_dropping_it() {
        // A shell plays the test process: it holds the sentinel's pipe, names its child, and is
        // killed.
        let mut child = Command::new("sleep").arg("600").spawn().unwrap();
        let folder = tempfile::tempdir().unwrap();
        let mut sentinel = Sentinel::watch(child.id(), Some(folder.path())).unwrap();
        drop(sentinel.child.stdin.take());
        assert!(!child.wait().unwrap().success());
        sentinel.child.wait().unwrap();
        assert!(!folder.path().exists());
    }
}
