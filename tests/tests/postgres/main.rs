//! Locks and stocks in PostgreSQL: `cargo xtask test --only postgres`.

mod clocks;
mod faults;
mod locks;
mod rows;
mod stock;
