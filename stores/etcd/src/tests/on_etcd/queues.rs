//! The order of waiters, and their notices.

use super::*;
use crate::tests::*;

lock_store_sequences::test_queues!(|| new_store().0);

/// Behind others in the queue, nobody sees it.
#[tokio::test]
async fn a_waiter_asks_again_when_a_key_without_a_lease_turns_out_to_be_first() {
    let (store, prefix) = new_store();
    let put = |number: usize, lease: &str| {
        SERVER.etcdctl(&["put", &format!("{prefix}k/{number:x}"), "stranger", "--lease", lease]);
    };
    put(0, "0");
    let lease = SERVER.etcdctl(&["lease", "grant", "600"]);
    let lease = lease.split(' ').nth(1).expect("lease … granted");
    (1..4).for_each(|number| put(number, lease));
    let request = waiting(Kind::Mutex, "k", 1);
    let mut watch = queue(&store, &request).await;
    SERVER.etcdctl(&["lease", "revoke", lease]);
    hears(&mut watch).await;
    let asked = ask(&store, &request).await.map_err(|error| error.kind());
    assert_eq!(asked.map(drop), Err(lock_core::store::StoreErrorKind::ForeignData));
}
