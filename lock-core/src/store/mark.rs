//! [`Marked`]: whether a store remembers all locks that it has granted.

use std::time::Duration;

use super::ServerTime;

/// Asks for a store's marker: a record that is there as long as the store keeps its data, and that
/// no lock's name can be the name of. A store that was started again without its data has none, and
/// may have forgotten locks that are not over yet: whoever needs several stores to agree has to
/// wait, after it was made anew, for as long as the longest lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MarkRequest {
    /// What to do.
    pub mark: Mark,
    /// The call resolves within about this time.
    pub timeout: Duration,
}

/// What a [`MarkRequest`] does before it answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mark {
    /// Nothing.
    Look,
    /// Makes the marker if there is none, or one that is from the future, since the store's clock
    /// was set back: the store remembers everything from now on.
    Make,
    /// Writes down that there is nothing that the store could have forgotten, because it was never
    /// used before. Refused by the store, without an error, when its clock is past this time.
    First {
        /// The last moment.
        latest: ServerTime,
    },
}

/// The answer to a [`MarkRequest`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Marked {
    /// The store remembers every lock that it has granted since then; `None` without a marker.
    pub since: Option<ServerTime>,
    /// When it looked.
    pub server_time: ServerTime,
}
