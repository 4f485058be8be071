//! Locks and stocks in PostgreSQL: `cargo xtask test --only postgres`.

mod chaos;
mod clocks;
mod commit;
mod faults;
mod locks;
mod pooler;
mod rows;
mod stock;
