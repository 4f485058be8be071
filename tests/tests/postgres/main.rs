//! Locks and stocks in PostgreSQL: `cargo xtask test --only postgres`.

mod chaos;
mod commit;
mod locks;
mod stock;
