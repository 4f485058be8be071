//! The tests with clients of other languages: Redisson, on the servers that `LOCK_INTEROP_SERVERS`
//! names, and those that share the plain layout, in `plain`.
#![allow(clippy::print_stdout, reason = "figures, shown with --nocapture")]

mod counting;
mod defects;
mod exclusive;
mod fair;
mod fencing;
mod plain;
mod program;
mod read_write;
mod several;
mod stress;
mod topologies;
