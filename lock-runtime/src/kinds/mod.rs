//! The kinds of locks: thin builders that make requests for the engine.

mod mutex;

pub use mutex::Mutex;
