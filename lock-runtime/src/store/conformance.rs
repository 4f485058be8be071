//! The store suite.
