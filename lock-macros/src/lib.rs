//! The `#[distributed_lock]` attribute of `lock-runtime`.
#![forbid(unsafe_code)]
