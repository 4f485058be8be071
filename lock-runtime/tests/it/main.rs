//! The public interface on the memory store, under paused time, and on stores that fail.
//!
//! The tests are one program, since linking takes longer than most of them. A test that sets
//! something that exists once per process, such as an allocator or the default manager, is a
//! separate program beside this folder.
#![allow(missing_docs)]

mod abilities;
mod bad_input;
mod block_on;
mod blocking;
mod drops;
mod drops_kinds;
mod errors;
mod executors;
mod gated;
mod kinds_edges;
mod kinds_memory;
mod kinds_model;
mod kinds_notices;
mod layer;
mod lost_holds;
mod manager;
mod mutex_edges;
mod mutex_faults;
mod mutex_memory;
mod mutex_model;
mod mutex_settings;
mod mutex_unpolled;
mod recorders;
mod refusals;
mod replication;
mod semaphore_line;
mod stock_sweeper;
mod views;
