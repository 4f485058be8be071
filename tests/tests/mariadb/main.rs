//! Locks and stocks in MariaDB: `cargo xtask test --only mariadb`.

mod clocks;
mod commit;
mod count;
mod faults;
mod locks;
mod rows;
mod stock;
