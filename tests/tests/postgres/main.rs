//! Locks and stocks in PostgreSQL: `cargo xtask test --only postgres`.

mod locks;
mod stock;
