//! What becomes of an operation's record when it is asked for something: the one table that all
//! stores go by.
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
//! Another quantity, or `reserve` for `take`, under an id that is there is an error whatever the
//! record says.

/// Where an operation stands. Every store knows all of these.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum State {
    /// Reserved until its deadline.
    Held,
    /// Taken, or reserved and confirmed.
    Sold,
    /// Cancelled before it was confirmed, or before it came.
    Cancelled,
    /// Not confirmed in time; its units are back.
    Expired,
    /// Sold, and brought back.
    GivenBack,
}

/// What ends, or undoes, an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Settle {
    /// A reservation becomes a sale.
    Confirm,
    /// A reservation is given up; or an operation that has not come yet is refused when it comes.
    Cancel,
    /// What was sold is available again.
    GiveBack,
}

/// Where an operation stands after it was asked for `settle`; `None`: there is no record, and none
/// is made. `overdue`: the deadline of its reservation is over.
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
