//! The answers of a [`LockStore`](super::LockStore).

use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use super::few::Few;
use super::time::{Moment, ServerTime};
use crate::token::FencingToken;

/// The future that each method of a [`LockStore`](super::LockStore) returns.
pub type BoxFuture<T> = Pin<Box<dyn Future<Output = T> + Send + 'static>>;

/// The answer to an [`AcquireRequest`](super::AcquireRequest).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Acquired {
    /// Every key is held by its owner now.
    Granted(Granted),
    /// Another owner holds at least one key; nothing was taken.
    Busy(Busy),
}

/// Every key of the request is held.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Granted {
    /// The tokens of each item, in the order of the request.
    pub tokens: Few<TokenRange>,
    /// When the store granted it.
    pub moment: Moment,
}

impl Granted {
    /// Creates the grant of a single key with `count` tokens, of which `last` is the largest.
    #[must_use]
    pub fn one(last: u64, count: u32, moment: impl Into<Moment>) -> Self {
        Self { tokens: Few::one(TokenRange::ending_at(last, count)), moment: moment.into() }
    }
}

/// Consecutive fencing tokens that belong to one grant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TokenRange {
    /// The smallest token.
    pub first: u64,
    /// The largest token, which is also the highest ever granted for the key.
    pub last: u64,
}

impl TokenRange {
    /// Returns the range of `count` tokens that ends with `last`.
    #[must_use]
    pub const fn ending_at(last: u64, count: u32) -> Self {
        Self { first: last.saturating_sub(count as u64 - 1), last }
    }

    /// Whether all tokens have been taken out of the range.
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

/// Another owner holds one of the keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Busy {
    /// Index of the first busy item in the request.
    pub item: usize,
    /// When the hold ends if nobody renews it; `None` if unknown. For a waiter that others in the
    /// queue precede: when to look again, which may be later. Never zero.
    pub remaining: Option<Duration>,
    /// When the store looked.
    pub moment: Moment,
    /// How many processes listen for the release, 0 if unknown. With many listeners, a contender
    /// that has lost a race asks again after a random delay.
    pub listeners: u32,
    /// How many waiters of the queue come first, 0 if unknown. A waiter that hears of nothing looks
    /// less often, the more there are.
    pub ahead: u32,
}

impl Busy {
    /// Creates the answer about the first item of a request. `remaining` is until when it is held.
    #[must_use]
    pub fn until(remaining: Option<Duration>, moment: impl Into<Moment>) -> Self {
        Self { item: 0, remaining, moment: moment.into(), listeners: 0, ahead: 0 }
    }
}

/// The answer to a [`ReleaseRequest`](super::ReleaseRequest).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Released {
    /// For each item: whether its owner still held it, in any kind.
    pub held: Few<bool>,
    /// Whether others waited for the release, in this process or elsewhere, besides
    /// [`own_watch`](super::ReleaseRequest::own_watch). A hint. It may be `None` after a lingering
    /// release, and is after a release that leaves other readers behind, because these notify
    /// nobody. Ignored for a kind that the store [queues](super::Abilities::queues).
    pub rivals: Rivals,
    /// The grant of [`ReleaseRequest::then`](super::ReleaseRequest::then), if the store made it.
    pub then: Option<Granted>,
}

impl Released {
    /// Creates the answer about a single key, by a store that does not know who waits.
    #[must_use]
    pub fn one(held: bool) -> Self {
        Self { held: Few::one(held), rivals: Rivals::Unknown, then: None }
    }
}

/// Whether others wait for a key. The larger of two is true of both together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Rivals {
    /// Nobody else waits.
    #[default]
    None,
    /// The store does not know. The releaser lets others go first now and then.
    Unknown,
    /// Others wait. They go first.
    Some,
}

impl Rivals {
    /// Returns whether a store that counted this many others has rivals.
    #[must_use]
    pub const fn counted(others: u64) -> Self {
        if others == 0 { Self::None } else { Self::Some }
    }
}

/// The result of one [`RenewItem`](super::RenewItem).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Renewed {
    /// Held; the remaining time of the hold is at least the requested lease. A waiter with this
    /// answer was granted the key and has missed the notice: it acquires once more.
    Held,
    /// No longer held by this owner. A waiter with this answer has lost its place in the queue:
    /// it acquires once more.
    Gone,
    /// Still waiting; look again after this time, unless a notice comes first. Never zero; a long
    /// time if the end of the hold is unknown.
    Waiting(Duration),
    /// No answer for this item, although others of the request have one: its server is down or
    /// refuses it. Ask again.
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
    /// Returns the answer at time `now`, when nothing is held, for a request that may be executed
    /// until `latest`. For stores that refuse late requests by their clock.
    #[must_use]
    pub fn by(latest: ServerTime, now: ServerTime) -> Self {
        if now > latest {
            return Self::Settled;
        }
        let left = latest.as_micros().saturating_sub(now.as_micros()).saturating_add(1);
        Self::Pending(Duration::from_micros(left))
    }
}
