//! The kinds of locks: thin builders that make requests for the engine.

mod lock;
mod multi;

pub use lock::Lock;
#[cfg(feature = "layer")]
pub(crate) use multi::MOST_KEYS;
pub use multi::MultiKey;
pub(crate) use multi::sorted;
