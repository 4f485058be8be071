//! Locks and stocks in PostgreSQL: `cargo xtask test --only postgres`.

mod commit;
mod locks;
mod stock;
