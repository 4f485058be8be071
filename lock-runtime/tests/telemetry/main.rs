//! What users see of locks in metrics and traces. `tracing` decides once per process whether anyone listens to a call site,
//! so these tests are a program of their own, and each holds [`captured::alone`].
#![allow(missing_docs)]

mod captured;
mod metrics;
mod some_locks;
mod spans;
mod warnings;
