//! The suite that every store has to pass, on a real cluster: with all keys of a test in one slot,
//! and with each in its own.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use lock_store_conformance::Subject;

use super::cluster::{Cluster, ClusterExt as _};
use super::{Layout, subject_of};

/// Returns a cluster that concurrent tests share, each with its own prefix.
async fn shared() -> Arc<Cluster> {
    static SHARED: tokio::sync::Mutex<Weak<Cluster>> = tokio::sync::Mutex::const_new(Weak::new());
    let mut shared = SHARED.lock().await;
    if let Some(cluster) = shared.upgrade() {
        return cluster;
    }
    let cluster = Arc::new(Cluster::start());
    *shared = Arc::downgrade(&cluster);
    cluster
}

async fn subject(layout: Layout, prefix: impl Fn(u64) -> String) -> Subject {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let cluster = shared().await;
    let prefix = prefix(NEXT.fetch_add(1, Ordering::Relaxed));
    let store = || {
        cluster.store_with(|options| {
            options.prefix.clone_from(&prefix);
            options.layout = layout;
        })
    };
    subject_of(store).keeping(cluster)
}

/// Requests for several keys in one slot work as on one server.
mod together {
    use super::*;

    const HASH_TAG: &str = "the prefix has a hash tag, which latches refuse";

    async fn together() -> Subject {
        subject(Layout::Hash, |number| format!("{{lock{number}}}:")).await.skipping(&[
            ("a_latch_is_set_once_until_it_is_at_zero", HASH_TAG),
            ("a_count_down_that_is_sent_again_counts_once", HASH_TAG),
            ("counting_below_zero_leaves_nothing", HASH_TAG),
            ("an_id_is_forgotten_after_its_time", HASH_TAG),
            ("a_deleted_latch_is_gone", HASH_TAG),
            ("a_watch_hears_zero_and_deletion_and_a_new_count", HASH_TAG),
        ])
    }

    lock_store_conformance::conformance!(together);
}

/// Requests for keys in several slots promise less.
mod apart {
    use super::*;

    pub(super) const COUNTERS: &str =
        "a refused request for keys in several slots may change counters and leases";
    pub(super) const ORDER: &str = "a request for keys in several slots may name any busy key";
    const QUEUES: &str = "a refused request for keys in several slots need not queue";
    const TAKEOVER: &str = "no takeover follows the release of keys in several slots";

    async fn apart() -> Subject {
        subject(Layout::Hash, |number| format!("lock{number}:")).await.skipping(&[
            ("acquire_of_two_items_is_all_or_nothing", COUNTERS),
            ("busy_names_the_first_busy_item", ORDER),
            ("busy_names_the_first_busy_item_of_any_kind", ORDER),
            ("nothing_is_taken_when_one_item_is_busy", COUNTERS),
            ("resent_acquire_that_is_busy_changes_nothing", COUNTERS),
            ("a_refused_request_announces_its_writers", QUEUES),
            ("a_refused_request_joins_every_queue", QUEUES),
            ("a_request_behind_one_of_several_gets_its_turn", QUEUES),
            ("a_request_of_several_is_told_and_not_granted", QUEUES),
            ("a_request_that_lost_one_place_queues_again_for_all_keys", QUEUES),
            ("takeover_can_be_withdrawn", TAKEOVER),
            ("takeover_of_two_items", TAKEOVER),
        ])
    }

    lock_store_conformance::conformance!(apart);
}

/// The plain layout, with all keys of a test in one slot.
mod plain_together {
    use super::*;

    async fn plain_together() -> Subject {
        subject(Layout::Plain, |number| format!("{{plain{number}}}:")).await
    }

    lock_store_conformance::conformance!(plain_together);
}

/// The plain layout, with each key in its own slot.
mod plain_apart {
    use super::*;

    async fn plain_apart() -> Subject {
        subject(Layout::Plain, |number| format!("plain{number}:")).await.skipping(&[
            ("acquire_of_two_items_is_all_or_nothing", apart::COUNTERS),
            ("busy_names_the_first_busy_item", apart::ORDER),
            ("nothing_is_taken_when_one_item_is_busy", apart::COUNTERS),
            ("resent_acquire_that_is_busy_changes_nothing", apart::COUNTERS),
        ])
    }

    lock_store_conformance::conformance!(plain_apart);
}
