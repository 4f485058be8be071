//! One interface to all databases.

mod classify;
mod database;
mod fault;
mod literal;
mod written;

#[cfg(feature = "postgres")]
pub(crate) use self::classify::POOLED;
pub(crate) use self::classify::{During, fault};
#[cfg(any(feature = "postgres", feature = "sqlite"))]
pub(crate) use self::database::query;
pub(crate) use self::database::{Arg, Row};
pub(crate) use self::fault::Fault;
#[cfg(any(feature = "postgres", feature = "sqlite"))]
pub(crate) use self::literal::literal;
#[cfg(feature = "mysql")]
pub(crate) use self::literal::mysql_literal;
pub(crate) use self::literal::{filled, quoted};
pub(crate) use self::written::Written;
#[cfg(any(feature = "postgres", feature = "sqlite"))]
pub(crate) use self::written::{names_as_json, rows_as_json};
