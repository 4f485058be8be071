//! [`Process`]: a child process, as the parent sees it.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::Duration;

use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

use crate::args::Options;

/// A child's line once its tasks are at work.
pub(in super::super) const READY: &str = "ready";
/// The parent's lines that tell a child to count, and to stop.
pub(in super::super) const COUNT: &str = "count";
pub(in super::super) const END: &str = "end";

/// A child process, killed on drop. It also exits when this process ends, because its input ends
/// then.
#[derive(Debug)]
pub(in super::super) struct Process {
    id: usize,
    child: Child,
    input: ChildStdin,
    lines: UnboundedReceiver<String>,
}

impl Process {
    pub(in super::super) fn start(options: &Options, url: &str, id: usize) -> Result<Self, String> {
        let failed =
            |error: std::io::Error| format!("process {id} of the workload can't be started: {error}");
        let mut command = Command::new(std::env::current_exe().map_err(failed)?);
        command.args(args(options, url, id)).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().map_err(failed)?;
        let (Some(input), Some(output)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(format!("process {id} of the workload has no pipes"));
        };
        let (sender, lines) = unbounded_channel();
        let process = Self { id, child, input, lines };
        std::thread::Builder::new()
            .name(format!("process {id}"))
            .spawn(move || {
                for line in BufReader::new(output).lines().map_while(Result::ok) {
                    if sender.send(line).is_err() {
                        break;
                    }
                }
            })
            .map_err(failed)?;
        Ok(process)
    }

    pub(in super::super) fn id(&self) -> usize {
        self.id
    }

    pub(in super::super) fn say(&mut self, line: &str) -> Result<(), String> {
        writeln!(self.input, "{line}")
            .map_err(|error| format!("process {} does not take {line:?}: {error}", self.id))
    }

    pub(in super::super) async fn hear(&mut self, within: Duration) -> Result<String, String> {
        match tokio::time::timeout(within, self.lines.recv()).await {
            Ok(Some(line)) => Ok(line),
            Ok(None) => Err(format!("process {} has ended; it says why on stderr", self.id)),
            Err(_) => Err(format!("process {} said nothing within {within:?}", self.id)),
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns the arguments of a child: the flags of its parent that matter to it, and the URL of the
/// parent's proxy.
fn args(options: &Options, url: &str, id: usize) -> Vec<String> {
    let flags = [
        ("workload", options.workload.to_string()),
        ("lib", options.lib.to_string()),
        ("url", url.to_owned()),
        ("tasks", options.tasks.to_string()),
        ("hold-us", options.hold.as_micros().to_string()),
        ("lease-ms", options.lease.as_millis().to_string()),
        ("id", id.to_string()),
    ];
    flags.into_iter().map(|(flag, value)| format!("--{flag}={value}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::{Store, Task, parse};

    #[test]
    fn a_child_has_the_flags_of_its_parent() {
        let line =
            "--workload multi --lib raw --tasks 3 --hold-us 7 --lease-ms 500 --procs 2 --delay-ms 9 --secs 1";
        let line: Vec<String> = line.split(' ').map(str::to_owned).collect();
        let Ok(Task::Run(parent)) = parse(&line) else { panic!("the flags are good") };
        let Ok(Task::Run(child)) = parse(&args(&parent, "redis://me:a=b@here:1", 1)) else {
            panic!("the flags of the child are good")
        };
        // The parent measures the time and has the proxy.
        let expected = Options {
            store: Store::Redis("redis://me:a=b@here:1".to_owned()),
            id: Some(1),
            procs: 4,
            secs: Duration::from_secs(10),
            delay: Duration::ZERO,
            ..*parent
        };
        assert_eq!(*child, expected);
    }
}
