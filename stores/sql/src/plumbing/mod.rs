//! Access to either database, shared by the locks and the stocks.
#![allow(missing_debug_implementations, reason = "no public interface")]

mod classify;
mod database;
mod fault;
mod literal;

pub use self::classify::{During, fault};
pub(crate) use self::database::query;
pub use self::database::{Arg, Database, Row, Work};
pub use self::fault::Fault;
pub(crate) use self::literal::{filled, quoted};
