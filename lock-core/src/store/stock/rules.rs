//! The transitions of an operation's record: the one table that all stores follow.
//!
//! | record | `take`, `reserve` again | `confirm` | `cancel` | `give_back` |
//! |---|---|---|---|---|
//! | none | tried | unknown | **cancelled**, whatever comes later | unknown |
//! | sold by `take` | as before | not reserved | not reserved | **given back** |
//! | held | as before | **sold**; after the deadline **expired** | **cancelled**; after the deadline **expired** | still held |
//! | sold by `confirm` | as before | as before | confirmed already | **given back** |
//! | cancelled | cancelled | cancelled | as before | cancelled |
//! | expired | expired | expired | as before | expired |
//! | given back | given back | given back | as before | as before |
//!
//! Another quantity under an existing id, or `reserve` instead of `take`, is an error whatever the
//! record says.

/// The state of an operation. Every store knows all of these.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum State {
    /// Reserved until its deadline.
    Held,
    /// Taken, or reserved and confirmed.
    Sold,
    /// Cancelled before it was confirmed, or before it arrived.
    Cancelled,
    /// Not confirmed in time; its units are back.
    Expired,
    /// Sold, and then given back.
    GivenBack,
}

/// The ways to end, or undo, an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Settle {
    /// A reservation becomes a sale.
    Confirm,
    /// A reservation is given up; an operation that has not arrived yet will be refused.
    Cancel,
    /// The sold units become available again.
    GiveBack,
}

/// Returns the state of an operation after `settle`. `overdue` says whether the deadline of its
/// reservation has passed. `None` means that there is no record, and none is made.
pub fn next(settle: Settle, now: Option<State>, overdue: bool) -> Option<State> {
    Some(match (settle, now) {
        (Settle::Cancel, None) => State::Cancelled,
        (Settle::Confirm | Settle::GiveBack, None) => return None,
        (Settle::Confirm | Settle::Cancel, Some(State::Held)) if overdue => State::Expired,
        (Settle::Confirm, Some(State::Held)) => State::Sold,
        (Settle::Cancel, Some(State::Held)) => State::Cancelled,
        (Settle::GiveBack, Some(State::Sold)) => State::GivenBack,
        (_, Some(state)) => state,
    })
}
