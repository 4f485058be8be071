//! [`Caller`]: the task that asks, as far as it can be known.

use std::thread::ThreadId;

use tokio::runtime::Handle;

/// A task. Only for the warning that a task waits for its own lock; never decides who enters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Caller {
    Task(tokio::task::Id),
    /// The future of `block_on`, as under `#[tokio::main]`, has no task id.
    Main(ThreadId),
}

impl Caller {
    pub(crate) fn current() -> Option<Self> {
        let main = || Handle::try_current().is_ok().then(|| Self::Main(std::thread::current().id()));
        tokio::task::try_id().map(Self::Task).or_else(main)
    }
}
