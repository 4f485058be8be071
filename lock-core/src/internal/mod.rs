//! Items shared by the crates of `lock-runtime`. Not public API: they may change with any version.

pub mod chance;
pub mod clock;
pub mod eager;
pub mod runtime;
pub mod scheme;
pub mod sync;
pub mod tasks;
pub mod time;
#[cfg(feature = "tls")]
pub mod tls;

pub use crate::replication::OF_HOW_MANY;
pub use crate::store::semaphore::{ids_of, is_of_permits, owner_of};
pub use crate::store::stock::{plan, steps};
pub use crate::token::Owners;
