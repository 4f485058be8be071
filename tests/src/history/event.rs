//! [`Event`]: what can happen in a run.

use std::time::Duration;

/// How much a caller wants the lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Want {
    /// Waits for so long that the end of the wait is a failure.
    Patient,
    /// Waits for a short time.
    Short,
    /// Makes one attempt.
    Try,
    /// Drops its future.
    Fickle,
}

/// How a key is wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// One holder at a time.
    Mutex,
    /// One holder at a time, in turn.
    Fair,
    /// Beside other readers.
    Read,
    /// One holder at a time, and no readers.
    Write,
}

impl Kind {
    /// Whether holders of this kind may be beside each other.
    #[must_use]
    pub fn is_shared(self) -> bool {
        self == Self::Read
    }
}

/// What kind of error a caller got.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ErrorClass {
    /// Somebody else has the lock, and the caller did not want to wait.
    Busy,
    /// The wait was over.
    TimedOut,
    /// Too many wait already.
    TooManyWaiters,
    /// The lock was lost.
    Lost,
    /// The grant had ended.
    NotHeld,
    /// The store could not be used.
    Unavailable,
    /// The replicas did not confirm.
    NotReplicated,
    /// The manager was shut down.
    ShutDown,
    /// Something has to be changed.
    Misconfigured,
    /// Anything else.
    Other,
}

/// How a release ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Confirmed.
    Released,
    /// The guard was dropped: nobody was told.
    Dropped,
    /// The lock had been lost, with why.
    Lost(String),
    /// Another error.
    Failed(ErrorClass, String),
}

/// What a fault takes from a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Loses {
    /// Nothing (class A): validity intervals must not overlap.
    Nothing,
    /// Keys (class B): deleted, flushed, evicted, expired by a clock that was stepped forward, not
    /// replicated before a failover. What was held then may overlap one validity.
    Keys,
    /// The condition for tokens that grow: the counter is gone or not asked, and the clock behind
    /// the highest token.
    Tokens,
    /// Both.
    KeysAndTokens,
    /// What one store of a quorum had. A hold that another store lacks too until its next renewal
    /// is gone, which its holder is told; nobody else gets the key while it is valid.
    Copies,
}

impl Loses {
    /// Whether it takes keys.
    #[must_use]
    pub fn keys(self) -> bool {
        matches!(self, Self::Keys | Self::KeysAndTokens)
    }

    /// Whether it takes the condition for tokens that grow.
    #[must_use]
    pub fn tokens(self) -> bool {
        matches!(self, Self::Tokens | Self::KeysAndTokens)
    }
}

/// What became of a conditional write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wrote {
    /// Taken.
    Accepted,
    /// Refused, since the token was too old.
    Refused,
    /// No answer.
    Unknown,
}

/// What is left when nobody holds or wants anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Remains {
    /// A counter of tokens.
    Counter,
    /// A latch of Redisson (20 s).
    Latch,
    /// A lock, a queue or another key of a lock.
    Key,
    /// Anything else: listeners, connections, tasks of a process.
    Other,
}

/// Something that happened to a request; or to a process, a server or the run. A request for
/// several keys is noted as one for each.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// The request is about to be sent.
    Ask {
        /// What for.
        key: String,
        /// How.
        kind: Kind,
        /// How much.
        want: Want,
        /// For how long.
        wait: Duration,
        /// A fixed lease; `None` if it is renewed.
        lease: Option<Duration>,
        /// The number that the requests of one call have in common: that of the first.
        call: u64,
    },
    /// It was granted; the validity of the record begins here at the earliest.
    Granted {
        /// Its token.
        token: u64,
    },
    /// It was refused.
    Refused {
        /// What kind of error.
        error: ErrorClass,
        /// What the error says.
        why: String,
    },
    /// The caller has dropped its future, or does not know what became of it.
    Left,
    /// The body is about to start.
    Body,
    /// The body is still at work.
    Alive,
    /// The holder is about to share from now on.
    Shared,
    /// The lost signal has come, with why.
    Lost {
        /// As the error says, or nothing.
        why: String,
    },
    /// The body has ended, and the release is about to be sent.
    End,
    /// The release has ended.
    Out {
        /// How.
        how: Outcome,
    },

    /// The process was stopped, or its executor was blocked.
    Paused,
    /// It goes on.
    Continued,
    /// It was killed.
    Killed,
    /// Until now the machine stood still, or what the log is about did: its executor, or the way to
    /// the servers.
    Stood {
        /// For how long.
        time: Duration,
    },

    /// A fault begins.
    Fault {
        /// Its name, for reports, and to find its end.
        name: String,
        /// What it takes from the store.
        loses: Loses,
        /// The errors that callers may get because of it.
        errors: Vec<ErrorClass>,
    },
    /// An open fault takes this key, and no other.
    Aimed {
        /// Its name.
        name: String,
        /// The key.
        key: String,
    },
    /// Just before and just after that part of an open fault which takes keys.
    Struck {
        /// Its name.
        name: String,
    },
    /// It is over.
    FaultOver {
        /// Its name.
        name: String,
    },
    /// No more faults from now on.
    Calm,
    /// All that was wanted is done, or given up; what [remains](Event::Remains) is noted from now
    /// on.
    Quiet,

    /// How many commands a server has executed so far.
    Commands {
        /// Which.
        server: String,
        /// Of its life.
        total: u64,
    },
    /// A look at a key from the side, in one atomic step.
    Seen {
        /// Which key.
        key: String,
        /// Who holds it.
        holders: Vec<String>,
        /// When the hold ends if nobody renews it, on the clock of the history; 0 when the key is
        /// free.
        expires: u64,
        /// Who waits in turn, and until when each counts as alive.
        queue: Vec<(String, u64)>,
    },
    /// Something that is left.
    Remains {
        /// What it is.
        what: Remains,
        /// For how long; `None` when it never ends by itself.
        ttl: Option<Duration>,
        /// Its name.
        name: String,
    },
    /// A holder has written an element to a set in a store of its own, which takes no smaller token
    /// than the largest it has seen.
    Wrote {
        /// Which set.
        set: String,
        /// With which token.
        token: u64,
        /// Different for each write.
        element: String,
        /// What became of it.
        outcome: Wrote,
    },
    /// The elements of such a set in the end.
    Contents {
        /// Which set.
        set: String,
        /// All of them.
        elements: Vec<String>,
    },
}
