//! [`Layout`]: how a lock is written at the server.

/// How a lock is written at the server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Layout {
    /// As Redisson writes it: a hash. For locks of all kinds.
    #[default]
    Hash,
    /// As `SET NX PX` writes it: a string. For mutexes only.
    Plain,
    /// The same for a server of a quorum. All requests are scripts, which the server refuses when
    /// they are late.
    PlainByScript,
}

impl Layout {
    /// Whether a lock is a string.
    pub(super) fn is_plain(self) -> bool {
        self != Self::Hash
    }
}
