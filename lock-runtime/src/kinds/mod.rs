//! The kinds of locks: thin builders that make requests for the engine.

mod lock;
mod multi;

pub use lock::{Lock, Mutex};
pub use multi::MultiKey;
pub(crate) use multi::sorted;
