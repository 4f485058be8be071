//! Tests of metrics, spans and warnings of locks.
//!
//! The tests are a separate program and run one at a time: each holds [`captured::alone`].
//! `tracing` remembers for the whole process whether a call site has a listener.
#![allow(missing_docs)]

mod captured;
mod metrics;
mod panics;
mod some_locks;
mod spans;
mod targets;
mod warnings;
