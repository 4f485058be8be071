//! Histories of runs, and the checkers that find what is wrong with one. A history contains the
//! requests of all processes and their outcomes, and all faults of processes and servers.
//!
//! Each participant writes a [log](Log) with one line per event. A line is one short `write` to a
//! file opened for appending, so a killed process leaves whole lines. All times are on one clock.
//! It is either the machine's ([`now_nanos`](crate::clock::now_nanos)), which all processes share,
//! or that of a simulation. A [`History`] combines the logs of a run, and [`check`] runs every
//! [checker](Check) over it.
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
pub(crate) use request::WITNESS;
pub(crate) use tokens::not_grown;

pub use check::{Check, Limits, Violation, check};
pub use event::{ErrorClass, Event, Kind, Loses, Outcome, Remains, Want, Wrote};
pub use log::{Log, Record};
pub use request::{Fault, Grant, History, Life, Request, Sample, Seen};
