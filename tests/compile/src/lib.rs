//! See `tests`.
