//! The attribute in every form, and everything that the layer accepts. Nothing here is run.
//!
//! `cargo xtask test clippy` shows that no form has a warning, not even a pedantic or nursery one.

#![warn(clippy::pedantic, clippy::nursery)]

mod boxed;
mod extractors;
mod kinds;
mod lints;
mod options;
mod placeholders;
mod signatures;
