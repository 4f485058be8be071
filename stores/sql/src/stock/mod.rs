//! [`SqlStocks`]: stocks in tables of the database, whose rows are changed in transactions.

mod call;
mod change;
mod numbers;
mod place;
mod records;
mod settle;
mod statements;
mod stocks;
mod take;

#[cfg(test)]
pub(crate) use self::statements::Statements;
pub(crate) use self::stocks::SqlStocks;
