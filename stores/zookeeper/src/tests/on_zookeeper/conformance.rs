//! The contract, with two managers on one server.

use lock_store_conformance::{Subject, conformance};

use super::*;

async fn subject() -> Subject {
    let url = url(&new_root());
    Subject::of_sessions(store(&url, ""), store(&url, ""))
}

conformance!(subject);
