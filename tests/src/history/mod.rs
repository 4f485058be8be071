//! Histories: what the processes of a run asked for, got and did, and what was done to them and to
//! the servers; and the checkers that say what is wrong with one.
//!
//! Whoever takes part writes a [log](Log): one line an event, each by one short `write` to a file
//! opened for appending, so that a process that is killed leaves whole lines. All times are on one
//! clock: that of the machine ([`now_nanos`](crate::clock::now_nanos)), which all processes share,
//! or that of a simulation. The logs of a run are put together to a [`History`], and [`check`] runs
//! every [checker](Check) over it.
//!
//! Runs of real processes ([`stress`](crate::stress)) and simulated ones write the same events and
//! are judged by the same rules.

mod answers;
mod check;
#[cfg(feature = "helpers")]
mod classify;
mod errors;
mod event;
mod exclusion;
mod fencing;
mod leftovers;
mod load;
mod log;
mod order;
mod ownership;
mod renewals;
mod request;
mod shares;
mod spans;
mod text;
mod tokens;
mod validity;
mod waiting;

#[cfg(feature = "helpers")]
pub(crate) use exclusion::ECHO;
pub(crate) use exclusion::{Window, beside};
#[cfg(feature = "helpers")]
pub(crate) use request::WITNESS;
pub(crate) use tokens::not_grown;

pub use check::{Check, Limits, Violation, check};
pub use event::{ErrorClass, Event, Kind, Loses, Outcome, Remains, Want, Wrote};
pub use log::{Log, Record};
pub use request::{Fault, Grant, History, Life, Request, Sample, Seen};
