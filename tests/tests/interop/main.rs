//! The tests with the real Redisson client. Their servers are what `LOCK_INTEROP_SERVERS` says.
#![allow(clippy::print_stdout, reason = "figures, shown with --nocapture")]

mod counting;
mod defects;
mod exclusive;
mod fair;
mod fencing;
mod program;
mod read_write;
mod several;
mod stress;
mod topologies;
