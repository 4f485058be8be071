//! Locks and stocks in MongoDB: `cargo xtask test --only mongodb`.

mod clocks;
mod count;
mod elections;
mod faults;
mod locks;
mod stock;
