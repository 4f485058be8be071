//! [`Watch`]: what is heard of the keys of a request.

use std::fmt;
use std::task::{Context, Poll};

use tokio::sync::mpsc;

use super::ServerTime;
use crate::token::FencingToken;

/// What a [`Watch`] hears.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Notice {
    /// A key was released, or may have been: try again.
    Retry,
    /// The subscription was interrupted and is up again: a message may have been missed, try again.
    Resubscribed,
    /// Whoever released the key granted it to the request that this watch is for, in the same step,
    /// with a lease of [`DIRECT_LEASE`](super::DIRECT_LEASE) or the request's own, if that is
    /// shorter. Only the request of a single [`Kind::Fair`](super::Kind::Fair) item without a
    /// [floor](super::AcquireRequest::token_floor) is granted so, others hear [`Notice::Retry`].
    /// One that listened when it [queued](super::AcquireRequest::queued) or asked again always is;
    /// one that does not listen may be, and learns of it from [`keep`](super::LockStore::keep) or
    /// when it acquires once more. A notice may come late: a grant from before an answer
    /// [`Busy`](super::Acquired::Busy) to the same request, by the store's time, is over.
    Granted {
        /// The token.
        token: FencingToken,
        /// When the store granted it.
        server_time: ServerTime,
    },
}

/// Notices about the keys of a request, delivered until the value is dropped.
///
/// Notices are hints. A full queue drops [`Notice::Retry`], since one is waiting there already.
pub struct Watch {
    notices: mpsc::Receiver<Notice>,
    confirmed: bool,
    _registration: Box<dyn Send + Sync>,
}

impl Watch {
    /// A watch fed through `notices`. `registration` is dropped with it. `confirmed`: whether
    /// notices are certain to be delivered from now on, as far as the connection lives; if not, the
    /// caller polls.
    #[must_use]
    pub fn new(notices: mpsc::Receiver<Notice>, confirmed: bool, registration: Box<dyn Send + Sync>) -> Self {
        Self { notices, confirmed, _registration: registration }
    }

    /// Whether the subscription was confirmed by the store.
    #[must_use]
    pub fn is_confirmed(&self) -> bool {
        self.confirmed
    }

    /// The next notice; pending for ever when the store has gone. Cancel safe.
    pub async fn notice(&mut self) -> Notice {
        match self.notices.recv().await {
            Some(notice) => notice,
            None => std::future::pending().await,
        }
    }

    /// As [`notice`](Self::notice), for those who listen to several; `None` when the store has
    /// gone.
    #[doc(hidden)]
    pub fn poll_notice(&mut self, cx: &mut Context<'_>) -> Poll<Option<Notice>> {
        self.notices.poll_recv(cx)
    }

    /// Takes it apart into what hears and its registration, as a drop does step by step.
    #[cfg(feature = "testing")]
    #[doc(hidden)]
    pub fn into_parts(self) -> (mpsc::Receiver<Notice>, Box<dyn Send + Sync>) {
        (self.notices, self._registration)
    }

    /// A notice that has arrived already.
    pub fn try_notice(&mut self) -> Option<Notice> {
        self.notices.try_recv().ok()
    }
}

impl fmt::Debug for Watch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Watch").field("confirmed", &self.confirmed).finish_non_exhaustive()
    }
}
