//! [`Event`]: the events of a run.

use std::time::Duration;

/// A caller's patience.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Want {
    /// Waits for so long that the end of the wait counts as a failure.
    Patient,
    /// Waits for a short time.
    Short,
    /// Makes one attempt.
    Try,
    /// Drops its future before the answer.
    Fickle,
}

/// The kind of a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// One holder at a time.
    Mutex,
    /// One holder at a time, in turn.
    Fair,
    /// Shared with other readers.
    Read,
    /// One holder at a time, and no readers.
    Write,
}

impl Kind {
    /// Whether several holders of this kind may have the lock at the same time.
    #[must_use]
    pub fn is_shared(self) -> bool {
        self == Self::Read
    }
}

/// The class of a caller's error.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ErrorClass {
    /// The lock is held, and the caller did not want to wait.
    Busy,
    /// The wait ended without a grant.
    TimedOut,
    /// There are too many waiters already.
    TooManyWaiters,
    /// The lock was lost.
    Lost,
    /// The grant had already ended.
    NotHeld,
    /// The store could not be used.
    Unavailable,
    /// The replicas did not confirm.
    NotReplicated,
    /// The manager was shut down.
    ShutDown,
    /// A setting has to be changed.
    Misconfigured,
    /// Anything else.
    Other,
}

/// How a release ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Confirmed.
    Released,
    /// The guard was dropped, so nobody was told the outcome.
    Dropped,
    /// The lock had been lost, for this reason.
    Lost(String),
    /// Another error.
    Failed(ErrorClass, String),
}

/// A fault's loss in a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Loses {
    /// Nothing (class A): validity intervals must not overlap.
    Nothing,
    /// Keys (class B): deleted, flushed, evicted, expired by a clock that was stepped forward, or
    /// not replicated before a failover. A hold of that time may overlap later ones for one
    /// validity.
    Keys,
    /// The guarantee that tokens grow: the counter is gone or not asked, and the clock is behind
    /// the highest token.
    Tokens,
    /// Both.
    KeysAndTokens,
    /// The data of one store of a quorum. A hold that a second store lacks too, until its next
    /// renewal, is gone; its holder is told. Nobody else gets the key while it is valid.
    Copies,
}

impl Loses {
    /// Whether keys are lost.
    #[must_use]
    pub fn keys(self) -> bool {
        matches!(self, Self::Keys | Self::KeysAndTokens)
    }

    /// Whether the guarantee that tokens grow is lost.
    #[must_use]
    pub fn tokens(self) -> bool {
        matches!(self, Self::Tokens | Self::KeysAndTokens)
    }
}

/// The outcome of a conditional write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wrote {
    /// The write was accepted.
    Accepted,
    /// The write was refused because its token was too old.
    Refused,
    /// There was no answer.
    Unknown,
}

/// A leftover when nobody holds or wants anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Remains {
    /// A token counter.
    Counter,
    /// A latch of Redisson, which lives for 20 s.
    Latch,
    /// A lock, a queue or another key of a lock.
    Key,
    /// Anything else: a process's listeners, connections, tasks.
    Other,
}

/// An event of a request, a process, a server or the run. A request for several keys is noted as
/// one request for each key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// The request is about to be sent.
    Ask {
        /// The key.
        key: String,
        /// The kind of lock.
        kind: Kind,
        /// The caller's patience.
        want: Want,
        /// Maximum wait.
        wait: Duration,
        /// A fixed lease; `None` if it is renewed.
        lease: Option<Duration>,
        /// The number that all requests of one call share: that of the first of them.
        call: u64,
    },
    /// The request was granted. The validity in the record begins here at the earliest.
    Granted {
        /// The fencing token.
        token: u64,
    },
    /// The request was refused.
    Refused {
        /// The class of the error.
        error: ErrorClass,
        /// The text of the error.
        why: String,
    },
    /// The caller has dropped its future, or does not know the outcome.
    Left,
    /// The body is about to start.
    Body,
    /// The body is still at work.
    Alive,
    /// The holder is about to downgrade: from now on it shares the lock.
    Shared,
    /// The lost signal has arrived.
    Lost {
        /// The reason, as in the error, or nothing.
        why: String,
    },
    /// The body has ended, and the release is about to be sent.
    End,
    /// The release has ended.
    Out {
        /// The outcome.
        how: Outcome,
    },

    /// The process was stopped, or its executor was blocked.
    Paused,
    /// The process goes on.
    Continued,
    /// The process was killed.
    Killed,
    /// The subject of the log stood still until now: the machine, the executor, or the way to the
    /// servers.
    Stood {
        /// Duration.
        time: Duration,
    },

    /// A fault begins.
    Fault {
        /// Its name, which reports use and which identifies its end.
        name: String,
        /// Its loss in the store.
        loses: Loses,
        /// The errors that callers may get because of it.
        errors: Vec<ErrorClass>,
    },
    /// An open fault takes only this key.
    Aimed {
        /// The name of the fault.
        name: String,
        /// The key.
        key: String,
    },
    /// The part of an open fault that takes keys begins, or has just ended.
    Struck {
        /// The name of the fault.
        name: String,
    },
    /// The fault is over.
    FaultOver {
        /// The name of the fault.
        name: String,
    },
    /// There are no more faults from now on.
    Calm,
    /// All requests are answered or given up. From now on the leftovers are noted as
    /// [`Remains`](Event::Remains).
    Quiet,

    /// The number of commands that a server has executed so far.
    Commands {
        /// The name of the server.
        server: String,
        /// The number since the server's start.
        total: u64,
    },
    /// An observation of a key from outside, in one atomic step. The times in it are not too late.
    Seen {
        /// The key.
        key: String,
        /// How long it took, in whole milliseconds: the key was like that at some time between then
        /// and now. The times in it may be too early by as much.
        took: Duration,
        /// The ids of the holders.
        holders: Vec<String>,
        /// The time at which the hold ends if nobody renews it, on the clock of the history; 0 when
        /// the key is free.
        expires: u64,
        /// The waiters in their order, and until when each counts as alive.
        queue: Vec<(String, u64)>,
    },
    /// A leftover.
    Remains {
        /// Its class.
        what: Remains,
        /// Its remaining life; `None` when it never ends by itself.
        ttl: Option<Duration>,
        /// Its name.
        name: String,
    },
    /// A holder has written an element to a set in a separate store, which refuses smaller tokens
    /// than the largest it has seen.
    Wrote {
        /// The name of the set.
        set: String,
        /// The token of the write.
        token: u64,
        /// The element, different for each write.
        element: String,
        /// The outcome.
        outcome: Wrote,
    },
    /// The final elements of such a set.
    Contents {
        /// The name of the set.
        set: String,
        /// All elements.
        elements: Vec<String>,
    },
}
