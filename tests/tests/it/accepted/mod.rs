//! The attribute in every form, and everything that the layer accepts. Nothing of it is run.
//!
//! `cargo xtask test clippy` shows that no form has a warning, pedantic and nursery ones included.

#![warn(clippy::pedantic, clippy::nursery)]

mod boxed;
mod extractors;
mod kinds;
mod lints;
mod options;
mod placeholders;
mod signatures;
