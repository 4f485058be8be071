//! [`Watch`]: the stream of notices about the keys of a request.

use std::fmt;
use std::task::{Context, Poll};

use tokio::sync::mpsc;

use super::ServerTime;
use crate::token::FencingToken;

/// A message that a [`Watch`] delivers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Notice {
    /// A key was released, or may have been: try again.
    Retry,
    /// The subscription was interrupted and is up again. A message may have been missed: try again.
    Resubscribed,
    /// The release of the key also granted it to the request of this watch, in the same step. The
    /// lease is [`DIRECT_LEASE`](super::DIRECT_LEASE), or the request's own if that is shorter.
    ///
    /// Only a request of a single [`Kind::Fair`](super::Kind::Fair) item without a
    /// [floor](super::AcquireRequest::token_floor) is granted this way; others get
    /// [`Notice::Retry`]. A waiter that listened when it [queued](super::AcquireRequest::queued) or
    /// asked again is always granted the key this way. A waiter that does not listen may be. It
    /// learns of the grant from
    /// [`keep`](super::LockStore::keep), or when it acquires once more.
    ///
    /// A notice may come late. A grant is over if, by the store's time, it is older than an answer
    /// [`Busy`](super::Acquired::Busy) to the same request.
    Granted {
        /// The fencing token of the grant.
        token: FencingToken,
        /// When the store granted it.
        server_time: ServerTime,
    },
}

/// Notices about the keys of a request, delivered until the value is dropped.
///
/// Notices are hints. A full queue drops [`Notice::Retry`], because one is waiting there already.
pub struct Watch {
    notices: mpsc::Receiver<Notice>,
    confirmed: bool,
    _registration: Box<dyn Send + Sync>,
}

impl Watch {
    /// Creates a watch fed through `notices`; dropping it drops `registration`. `confirmed` says
    /// whether notices are certain to be delivered from now on, while the connection lives; if not,
    /// the caller polls.
    #[must_use]
    pub fn new(notices: mpsc::Receiver<Notice>, confirmed: bool, registration: Box<dyn Send + Sync>) -> Self {
        Self { notices, confirmed, _registration: registration }
    }

    /// Whether the store has confirmed the subscription.
    #[must_use]
    pub fn is_confirmed(&self) -> bool {
        self.confirmed
    }

    /// Waits for the next notice; stays pending forever once the store is gone. Cancel safe.
    pub async fn notice(&mut self) -> Notice {
        match self.notices.recv().await {
            Some(notice) => notice,
            None => std::future::pending().await,
        }
    }

    /// Polls for the [next notice](Self::notice), for callers that listen to several watches;
    /// `None` once the store is gone.
    #[doc(hidden)]
    pub fn poll_notice(&mut self, cx: &mut Context<'_>) -> Poll<Option<Notice>> {
        self.notices.poll_recv(cx)
    }

    /// Splits the watch into its receiver and its registration, so that a test can drop them one by
    /// one.
    #[cfg(feature = "testing")]
    #[doc(hidden)]
    pub fn into_parts(self) -> (mpsc::Receiver<Notice>, Box<dyn Send + Sync>) {
        (self.notices, self._registration)
    }

    /// Returns a notice that has already arrived.
    pub fn try_notice(&mut self) -> Option<Notice> {
        self.notices.try_recv().ok()
    }
}

impl fmt::Debug for Watch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Watch").field("confirmed", &self.confirmed).finish_non_exhaustive()
    }
}
