//! [`Callers`]: a program in another language that takes and releases locks on command.

use std::process::Command;
use std::time::Duration;

use crate::process::Helper;

/// Maximum time for an answer, also of a count. Generous: two busy cores.
const LIMIT: Duration = Duration::from_secs(240);

/// A process that takes and releases locks. It is killed on drop.
///
/// It prints `ready` when it is connected. Then it takes commands. Each begins with the name of a
/// caller, as does its answer. A caller executes its commands one after the other, and those of
/// different callers are executed at once.
#[derive(Debug)]
pub struct Callers {
    helper: Helper,
}

impl Callers {
    /// Starts the program, and waits until it is connected.
    #[track_caller]
    pub(crate) fn start(command: &mut Command) -> Self {
        let mut helper = Helper::spawn_command(command);
        assert_eq!(helper.line(LIMIT), "ready");
        Self { helper }
    }

    /// Sends a command.
    pub fn send(&mut self, command: &str) {
        self.helper.send(command);
    }

    /// Sends a command, and returns the answer without the caller.
    #[track_caller]
    pub fn ask(&mut self, command: &str) -> String {
        self.send(command);
        self.answer()
    }

    /// Returns the next answer without the caller.
    ///
    /// # Panics
    ///
    /// When none comes within four minutes.
    #[track_caller]
    pub fn answer(&mut self) -> String {
        let line = self.helper.line(LIMIT);
        line.split_once(' ').map_or(line.as_str(), |(_, answer)| answer).to_owned()
    }

    /// Returns whether no answer comes within this time.
    pub fn is_silent(&mut self, within: Duration) -> bool {
        self.helper.try_line(within).is_none()
    }

    /// Returns the process, to be signalled.
    pub fn helper(&mut self) -> &mut Helper {
        &mut self.helper
    }
}
