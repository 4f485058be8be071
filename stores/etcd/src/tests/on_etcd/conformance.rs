//! The contract, with two managers on one server.

use lock_store_conformance::{Subject, conformance};

use super::{SERVER, new_prefix};
use crate::tests::store;

async fn subject() -> Subject {
    let prefix = new_prefix();
    Subject::of_sessions(store(&SERVER.url(), &prefix), store(&SERVER.url(), &prefix))
}

conformance!(subject);
