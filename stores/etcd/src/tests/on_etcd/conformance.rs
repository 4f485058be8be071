//! The contract, with two managers on one server.

use lock_store_conformance::{Subject, conformance};

use super::{SERVER, new_prefix};
use crate::tests::store;

fn two_at(url: &str) -> Subject {
    let prefix = new_prefix();
    Subject::of_sessions(store(url, &prefix), store(url, &prefix))
}

async fn subject() -> Subject {
    two_at(&SERVER.url())
}

conformance!(subject);

/// With tokens that are revisions.
mod revisions {
    use super::*;

    async fn subject() -> Subject {
        two_at(&format!("{}?tokens=revision", SERVER.url()))
    }

    conformance!(subject);
}
