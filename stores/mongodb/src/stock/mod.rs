//! Stocks in collections of the database, whose documents are changed in transactions. `steps` has
//! the commands of a transaction; [`lock_store_records::stock`] has what they are for.

mod call;
mod commands;
mod steps;

pub(crate) use self::call::stocks;
