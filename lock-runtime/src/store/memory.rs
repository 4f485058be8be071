//! The memory store.
