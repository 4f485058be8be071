//! [`Subscription`]: the messages that tell a contender when to look again.

use std::time::Duration;

use lock_core::internal::clock::Tick;
use lock_core::store::{BoxFuture, Echo, Notice, StoreError, Watch};

pub use super::machine::Heard;
use super::retry::POLL_LONGEST;

/// Delay before an unconfirmed subscription is requested again.
const AGAIN: Duration = Duration::from_secs(1);

/// A watch, or a pending call for one. A server may accept a subscription and never confirm it, so
/// nobody blocks on the answer. The call is polled only while its contender is idle. Dropping the
/// subscription ends it.
#[derive(Default)]
pub struct Subscription {
    watch: Option<Watch>,
    call: Option<BoxFuture<Result<Watch, StoreError>>>,
    not_before: Tick,
    /// Whether the last call brought no confirmed watch.
    deaf: bool,
}

impl Subscription {
    /// Returns what a release names as its own watch, if there is one, confirmed or not.
    pub(crate) fn echo(&self) -> Option<Echo> {
        self.watch.as_ref().map(Watch::echo)
    }

    fn is_confirmed(&self) -> bool {
        self.watch.as_ref().is_some_and(Watch::is_confirmed)
    }

    /// Requests messages through `call`, at most once a second.
    pub fn want(&mut self, now: Tick, call: impl FnOnce() -> BoxFuture<Result<Watch, StoreError>>) {
        let has_all = self.watch.as_ref().is_some_and(|watch| watch.is_confirmed() || watch.gives_hints());
        if !has_all && self.call.is_none() && now >= self.not_before {
            self.not_before = now + AGAIN;
            self.call = Some(call());
        }
    }

    /// Whether messages arrive, or are expected to arrive once the call is answered.
    pub fn listens(&self) -> bool {
        self.is_confirmed() || self.call.is_some() && !self.deaf
    }

    /// Returns the maximum pause between two attempts: `fallback` if messages arrive, less
    /// otherwise.
    pub fn longest(&self, fallback: Duration) -> Duration {
        if self.is_confirmed() { fallback } else { fallback.min(POLL_LONGEST) }
    }

    /// Discards the messages that have already arrived.
    pub fn skip(&mut self) {
        if let Some(watch) = &mut self.watch {
            watch.skip();
        }
    }

    /// Waits for the next message; stays pending forever if no subscription is wanted. Cancel safe.
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
