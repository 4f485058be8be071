//! What users see of locks in metrics and traces. Recorders and subscribers hear the whole process, so these tests are a
//! program of their own.
#![allow(missing_docs)]

mod captured;
mod metrics;
mod recorders;
mod some_locks;
mod spans;
mod warnings;
