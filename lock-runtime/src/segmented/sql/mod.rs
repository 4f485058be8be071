//! [`SqlStocks`]: stocks in a database, whose rows are changed under the locks of a manager.

mod call;
mod change;
mod numbers;
mod records;
mod settle;
mod statements;
mod stocks;
mod tables;
mod take;

pub use stocks::SqlStocks;
