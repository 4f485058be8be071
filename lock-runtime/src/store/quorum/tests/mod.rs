//! The quorum on stores in memory that fail on command.

mod conformance;
mod rig;
