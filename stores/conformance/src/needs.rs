//! [`Need`]: what a test needs of a store.

use lock_core::store::{Lacked, LateRequests, Tokens};

use super::*;

/// An ability that a test needs. The store claims it, or the test is left out.
#[doc(hidden)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    /// Several keys in one request.
    Several,
    /// Fair locks.
    Fair,
    /// Readers and writers.
    ReadWrite,
    /// The downgrade of a writer.
    Downgrade,
    /// Releases that leave the key taken.
    Shortens,
    /// Releases with a takeover.
    Takeovers,
    /// Releases that grant the key to the first waiter.
    Direct,
    /// Confirmed watches.
    Pushed,
    /// Listeners that are counted.
    Listeners,
    /// More than one token in a grant.
    Ranges,
    /// Counters of tokens that go by the clock, and outlive the holds.
    ClockTokens,
    /// A counter of tokens for each key.
    OwnTokens,
    /// Tokens above a floor.
    Floors,
    /// Late requests that are refused by the clock.
    ByClock,
    /// Mutexes that do not queue.
    Races,
    /// Mutexes that queue.
    Queues,
    /// Keys that are free although others are in their queues. An entry that ends with a session
    /// holds its key as soon as it is the first of the queue.
    FreeQueues,
    /// Readers and writers that do not queue, and writers with intents.
    Intents,
    /// Semaphores.
    Semaphores,
    /// Latches.
    Latches,
    /// Scans.
    Scan,
}

/// Returns those of the needs that the store does not claim.
pub(super) fn lacked(store: &dyn LockStore, needs: &[Need]) -> Vec<Need> {
    needs.iter().copied().filter(|need| !need.is_met(store)).collect()
}

impl Need {
    /// All needs.
    pub(super) const ALL: [Self; 21] = [
        Self::Several,
        Self::Fair,
        Self::ReadWrite,
        Self::Downgrade,
        Self::Shortens,
        Self::Takeovers,
        Self::Direct,
        Self::Pushed,
        Self::Listeners,
        Self::Ranges,
        Self::ClockTokens,
        Self::OwnTokens,
        Self::Floors,
        Self::ByClock,
        Self::Races,
        Self::Queues,
        Self::FreeQueues,
        Self::Intents,
        Self::Semaphores,
        Self::Latches,
        Self::Scan,
    ];

    /// Whether the store claims it.
    fn is_met(self, store: &dyn LockStore) -> bool {
        let abilities = store.abilities();
        match self {
            Self::Several => abilities.several,
            Self::Fair => abilities.fair,
            Self::ReadWrite => abilities.read_write,
            Self::Downgrade => abilities.downgrade,
            Self::Shortens => abilities.shortens,
            Self::Takeovers => abilities.takeovers,
            Self::Direct => abilities.direct_grants,
            Self::Pushed => abilities.notices == Notices::Pushed,
            Self::Listeners => abilities.counts_listeners,
            Self::Ranges => abilities.most_tokens > 1,
            Self::ClockTokens => abilities.tokens == Tokens::Clock,
            Self::OwnTokens => abilities.own_tokens,
            Self::Floors => store.member().is_some(),
            Self::ByClock => abilities.late_requests == LateRequests::ByClock,
            Self::Races => !abilities.queues(Kind::Mutex),
            Self::Queues => abilities.queues(Kind::Mutex),
            Self::FreeQueues => abilities.late_requests != LateRequests::BySession,
            Self::Intents => !abilities.queues(Kind::Write),
            Self::Semaphores => store.semaphores().is_some(),
            Self::Latches => store.latches().is_some(),
            Self::Scan => abilities.scan,
        }
    }

    /// Says what a store lacks, after its name.
    pub(super) fn lack(self) -> String {
        let lacked = match self {
            Self::Several => Lacked::Several,
            Self::Fair => Lacked::Fair,
            Self::ReadWrite => Lacked::ReadWrite,
            Self::Downgrade => Lacked::Downgrade,
            Self::Shortens => Lacked::Shortens,
            Self::Semaphores => Lacked::Semaphores,
            Self::Latches => Lacked::Latches,
            Self::Scan => Lacked::Scan,
            Self::Takeovers => return "has no takeovers".to_owned(),
            Self::Direct => return "has no grants by a release".to_owned(),
            Self::Pushed => return "has no notices".to_owned(),
            Self::Listeners => return "has no count of its listeners".to_owned(),
            Self::Ranges => return "has one token for each grant".to_owned(),
            Self::ClockTokens => return "has no tokens by its clock".to_owned(),
            Self::OwnTokens => return "has one counter of tokens for several keys".to_owned(),
            Self::Floors => return "has no place in a quorum".to_owned(),
            Self::ByClock => return "has no clock that refuses late requests".to_owned(),
            Self::Races => return "has queues for its mutexes".to_owned(),
            Self::Queues => return "has no queues for its mutexes".to_owned(),
            Self::FreeQueues => return "has no free keys with waiters".to_owned(),
            Self::Intents => return "has queues for its readers and writers".to_owned(),
        };
        lacked.to_string()
    }
}
