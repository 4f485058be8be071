//! Tests against a real server.
