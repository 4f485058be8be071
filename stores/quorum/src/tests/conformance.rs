//! The suite that every store has to pass, on three memory stores.

use lock_store_conformance::{Subject, conformance};

use super::rig::{Rig, SECOND};

async fn subject() -> Subject {
    let rig = Rig::new(3);
    // Tests renew for minutes.
    let (store, other) = (rig.process_with(1200 * SECOND), rig.process_with(1200 * SECOND));
    Subject::new(store, other).keeping(rig)
}

conformance!(subject, start_paused = true);
