//! [`Watch`]: the stream of notices about the keys of a request.

use std::fmt;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use tokio::sync::mpsc;

use super::Moment;
use crate::internal::sync::atomic::{AtomicBool, Ordering};
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
    /// lease is the store's [`direct_lease`](super::Abilities::direct_lease), or the request's own
    /// if that is shorter.
    ///
    /// Only a [direct](super::AcquireRequest::direct) request of a single item that
    /// [queues](super::Abilities::queues) is granted this way; others get [`Notice::Retry`]. A
    /// waiter that listened when it [queued](super::AcquireRequest::queued) or asked again is
    /// always granted the key this way. A waiter that does not listen may be. It learns of the
    /// grant from [`renew`](super::LockStore::renew), or when it acquires once more.
    ///
    /// A notice may come late. A grant is over if its moment is not after that of an answer
    /// [`Busy`](super::Acquired::Busy) to the same request.
    Granted {
        /// The fencing token of the grant.
        token: FencingToken,
        /// When the store granted it.
        moment: Moment,
    },
}

/// Notices about the keys of a request, delivered until the value is dropped.
///
/// Notices are hints. A full queue drops [`Notice::Retry`], because one is waiting there already.
pub struct Watch {
    notices: mpsc::Receiver<Notice>,
    confirmed: bool,
    gives_hints: bool,
    echo: Echo,
    _registration: Box<dyn Send + Sync>,
}

/// The notice of its owner's own release, which a [`Watch`] leaves out.
#[derive(Clone, Debug, Default)]
pub struct Echo(Arc<AtomicBool>);

impl Echo {
    /// Announces that the watch is about to get a [`Notice::Retry`] because of its owner's release.
    /// A store calls this before it answers the release. Afterwards the watch could leave out
    /// another owner's.
    pub fn expect(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Whether the notice is announced and has not arrived.
    #[must_use]
    pub fn is_expected(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// Whether `notice` is the one that was announced.
    fn is(&self, notice: Notice) -> bool {
        // Whatever else comes means that the echo was lost.
        self.is_expected() && self.0.swap(false, Ordering::Relaxed) && notice == Notice::Retry
    }
}

impl Watch {
    /// Creates a watch fed through `notices`; dropping it drops `registration`. `confirmed` says
    /// whether notices are certain to be delivered from now on, while the connection lives; if not,
    /// the caller polls.
    #[must_use]
    pub fn new(notices: mpsc::Receiver<Notice>, confirmed: bool, registration: Box<dyn Send + Sync>) -> Self {
        Self { notices, confirmed, gives_hints: false, echo: Echo::default(), _registration: registration }
    }

    /// Creates a watch without notices: its caller polls.
    #[must_use]
    pub fn polled() -> Self {
        let (_, notices) = mpsc::channel(1);
        Self::new(notices, false, Box::new(()))
    }

    /// Returns the same watch as one whose notices are hints: its caller polls, too. For keys that
    /// other programs release without a notice.
    #[must_use]
    pub fn unconfirmed(self) -> Self {
        Self { confirmed: false, gives_hints: true, ..self }
    }

    /// Returns what a [release](super::ReleaseRequest::own_watch) of the watch's owner names.
    #[must_use]
    pub fn echo(&self) -> Echo {
        self.echo.clone()
    }

    /// Discards the notices that have arrived, and no longer expects an echo.
    #[doc(hidden)]
    pub fn skip(&mut self) {
        while self.notices.try_recv().is_ok() {}
        self.echo.0.store(false, Ordering::Relaxed);
    }

    /// Whether the store has confirmed the subscription.
    #[must_use]
    pub fn is_confirmed(&self) -> bool {
        self.confirmed
    }

    /// Whether it goes on to deliver notices although it is not confirmed.
    #[doc(hidden)]
    #[must_use]
    pub fn gives_hints(&self) -> bool {
        self.gives_hints
    }

    /// Waits for the next notice; stays pending forever once the store is gone. Cancel safe.
    pub async fn notice(&mut self) -> Notice {
        match std::future::poll_fn(|cx| self.poll_notice(cx)).await {
            Some(notice) => notice,
            None => std::future::pending().await,
        }
    }

    /// Polls for the [next notice](Self::notice), for callers that listen to several watches;
    /// `None` once the store is gone.
    #[doc(hidden)]
    pub fn poll_notice(&mut self, cx: &mut Context<'_>) -> Poll<Option<Notice>> {
        loop {
            let notice = ready!(self.notices.poll_recv(cx));
            if !notice.is_some_and(|notice| self.echo.is(notice)) {
                return Poll::Ready(notice);
            }
        }
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
        std::iter::from_fn(|| self.notices.try_recv().ok()).find(|notice| !self.echo.is(*notice))
    }
}

impl fmt::Debug for Watch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Watch").field("confirmed", &self.confirmed).finish_non_exhaustive()
    }
}
