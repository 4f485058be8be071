//! [`Caller`]: which task asks, as far as one can know.

use std::thread::ThreadId;

use tokio::runtime::Handle;

/// A task, for the warning to one that waits for what it holds itself. Never decides who enters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Caller {
    Task(tokio::task::Id),
    /// The future of `block_on`, as under `#[tokio::main]`, has no number.
    Main(ThreadId),
}

impl Caller {
    pub(crate) fn current() -> Option<Self> {
        let main = || Handle::try_current().is_ok().then(|| Self::Main(std::thread::current().id()));
        tokio::task::try_id().map(Self::Task).or_else(main)
    }
}
