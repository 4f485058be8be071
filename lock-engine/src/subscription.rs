//! [`Subscription`]: the messages that tell a contender when to look again.

use std::time::Duration;

use lock_core::internal::clock::Tick;
use lock_core::store::{BoxFuture, Notice, StoreError, Watch};

pub use super::machine::Heard;
use super::retry::POLL_LONGEST;

/// A subscription that was not confirmed is asked for again after this.
const AGAIN: Duration = Duration::from_secs(1);

/// A watch, or a pending call for one. A server may take a subscription and never confirm it, so
/// nobody waits for the answer: the call is polled only while its contender waits for something to
/// happen. Dropping it gives it up.
#[derive(Default)]
pub struct Subscription {
    watch: Option<Watch>,
    call: Option<BoxFuture<Result<Watch, StoreError>>>,
    not_before: Tick,
    /// The last call brought no confirmed watch.
    deaf: bool,
}

impl Subscription {
    /// Whether there is a watch. It may be one that was not confirmed.
    pub(crate) fn is_watched(&self) -> bool {
        self.watch.is_some()
    }

    fn is_confirmed(&self) -> bool {
        self.watch.as_ref().is_some_and(Watch::is_confirmed)
    }

    /// Messages are wanted; `call` asks for them, at most once a second.
    pub fn want(&mut self, now: Tick, call: impl FnOnce() -> BoxFuture<Result<Watch, StoreError>>) {
        if !self.is_confirmed() && self.call.is_none() && now >= self.not_before {
            self.not_before = now + AGAIN;
            self.call = Some(call());
        }
    }

    /// Whether messages arrive, or are expected to once the call is answered.
    pub fn listens(&self) -> bool {
        self.is_confirmed() || self.call.is_some() && !self.deaf
    }

    /// The longest pause between two attempts. It is `fallback` where messages arrive.
    pub fn longest(&self, fallback: Duration) -> Duration {
        if self.is_confirmed() { fallback } else { fallback.min(POLL_LONGEST) }
    }

    /// Forgets what has been heard already.
    pub fn skip(&mut self) {
        if let Some(watch) = &mut self.watch {
            while watch.try_notice().is_some() {}
        }
    }

    /// The next thing to be heard, pending for ever where nothing is wanted. Cancel safe.
    pub async fn hear(&mut self) -> Heard {
        loop {
            tokio::select! {
                biased; // so that a run can be made again
                answer = next_answer(&mut self.call) => {
                    if let Ok(watch) = answer {
                        self.watch = Some(watch);
                    }
                    if self.is_confirmed() {
                        self.deaf = false;
                        return Heard::Confirmed;
                    }
                    if !std::mem::replace(&mut self.deaf, true) {
                        return Heard::Unconfirmed;
                    }
                }
                notice = next_notice(self.watch.as_mut()) => return Heard::Notice(notice),
            }
        }
    }
}

async fn next_answer(call: &mut Option<BoxFuture<Result<Watch, StoreError>>>) -> Result<Watch, StoreError> {
    let Some(answer) = call else { return std::future::pending().await };
    let answer = answer.await;
    *call = None;
    answer
}

async fn next_notice(watch: Option<&mut Watch>) -> Notice {
    match watch {
        Some(watch) => watch.notice().await,
        None => std::future::pending().await,
    }
}
