//! The tests with the real Redisson client, on the servers that `LOCK_INTEROP_SERVERS` names.
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
