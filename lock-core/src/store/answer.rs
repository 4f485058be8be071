//! What a [`LockStore`](super::LockStore) answers.

use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use super::few::Few;
use super::time::ServerTime;
use crate::token::FencingToken;

/// What the methods of a [`LockStore`](super::LockStore) return.
pub type BoxFuture<T> = Pin<Box<dyn Future<Output = T> + Send + 'static>>;

/// The answer to an [`AcquireRequest`](super::AcquireRequest).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Acquired {
    /// Every key is held by its owner now.
    Granted(Granted),
    /// At least one key is held by somebody else; nothing was taken.
    Busy(Busy),
}

/// Every key of the request is held.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Granted {
    /// The tokens of each item, in the order of the request.
    pub tokens: Few<TokenRange>,
    /// When the store granted it.
    pub server_time: ServerTime,
}

/// Consecutive fencing tokens that belong to one grant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TokenRange {
    /// The smallest.
    pub first: u64,
    /// The largest, which is also the highest token of the key ever granted.
    pub last: u64,
}

impl TokenRange {
    /// The `count` tokens that end with `last`.
    #[must_use]
    pub const fn ending_at(last: u64, count: u32) -> Self {
        Self { first: last.saturating_sub(count as u64 - 1), last }
    }

    /// Whether all its tokens were taken.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.first > self.last
    }

    /// Takes the smallest token out of the range.
    pub fn take(&mut self) -> Option<FencingToken> {
        if self.is_empty() {
            return None;
        }
        let token = FencingToken::new(self.first);
        self.first += 1;
        Some(token)
    }
}

/// Somebody else holds one of the keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Busy {
    /// Index of the first busy item in the request.
    pub item: usize,
    /// When the hold ends if nobody renews it; for a free key that another waiter is to have first:
    /// when to look again. Never zero.
    pub remaining: Duration,
    /// When the store looked.
    pub server_time: ServerTime,
    /// How many processes listen for the release, 0 if that is not known. Where many do, those who
    /// have lost a race ask after a random delay.
    pub listeners: u32,
}

/// The answer to a [`ReleaseRequest`](super::ReleaseRequest).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Released {
    /// For each item: whether its owner still held it, in whatever kind.
    pub held: Few<bool>,
    /// How many others listened for the release, in this process or elsewhere, a hint: only whether
    /// it is zero counts. [`own_watches`](super::ReleaseRequest::own_watches) are not counted. A
    /// lingering release may leave it at zero, and one that leaves other readers behind does:
    /// nobody is told of it.
    pub other_listeners: u64,
    /// Whether our own watch of these keys will see this release too, and should ignore it.
    pub echo: bool,
    /// The grant of [`ReleaseRequest::then`](super::ReleaseRequest::then), if it was carried out.
    pub then: Option<Granted>,
}

/// What became of one [`KeepItem`](super::KeepItem).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kept {
    /// Held; the remaining time of a hold is at least what was asked for. A waiter that hears this
    /// was granted the key and has missed the notice: it acquires once more.
    Renewed,
    /// Not held by this owner any more. A waiter that hears this has lost its place in a fair
    /// queue: it acquires once more.
    Gone,
    /// Still waiting; look again after this time, if nothing is heard before. Never zero.
    Waiting(Duration),
    /// No answer for this item, while there is one for others of the request: its server is away,
    /// or refuses it. Ask again.
    Unknown,
}

/// The answer to a withdrawal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Withdrawn {
    /// Nothing of the request is held, and no late copy of it can be executed any more.
    Settled,
    /// Nothing of the request is held now, but a late copy could still be executed: withdraw again
    /// after this time.
    Pending(Duration),
}

impl Withdrawn {
    /// Nothing is held now, at `now`, of a request that may be executed until `latest`.
    #[doc(hidden)]
    pub fn by(latest: ServerTime, now: ServerTime) -> Self {
        if now > latest {
            return Self::Settled;
        }
        let left = latest.as_micros().saturating_sub(now.as_micros()).saturating_add(1);
        Self::Pending(Duration::from_micros(left))
    }
}
