//! The quorum on memory stores that fail on command.

mod acquire;
mod conformance;
mod exclusion;
mod first_use;
mod release;
mod renewal;
mod rig;
mod tokens;
mod waiters;
