//! Stocks in tables of the database, whose rows are changed in transactions. `steps` has the
//! statements of a transaction; [`lock_store_records::stock`] has what they are for.

mod call;
mod place;
mod statements;
mod steps;

pub(crate) use self::place::stocks;
#[cfg(test)]
pub(crate) use self::statements::Statements;
