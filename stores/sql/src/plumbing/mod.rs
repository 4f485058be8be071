//! One interface to both databases.

mod classify;
mod database;
mod fault;
mod literal;

#[cfg(feature = "postgres")]
pub(crate) use self::classify::POOLED;
pub(crate) use self::classify::{During, fault};
pub(crate) use self::database::{Arg, Row, query};
pub(crate) use self::fault::Fault;
pub(crate) use self::literal::{filled, quoted};
