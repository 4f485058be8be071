//! Tokens that are revisions, and that can't be compared with those of other managers.

use lock_core::store::{Kind, StoreErrorKind};

use super::*;
use crate::tests::{SECOND, ask, granted, hears_grant, queue, release, trying, waiting};

fn with_revisions(prefix: &str) -> Arc<EtcdStore> {
    store(&format!("{}?tokens=revision", SERVER.url()), prefix)
}

/// The revision of the server.
fn revision() -> u64 {
    let status = SERVER.etcdctl(&["get", "nothing", "--write-out=fields"]);
    let line = status.lines().find_map(|line| line.strip_prefix("\"Revision\" : "));
    line.and_then(|revision| revision.parse().ok()).expect(&status)
}

#[tokio::test]
async fn a_token_is_the_revision_of_its_grant() {
    let prefix = new_prefix();
    let store = with_revisions(&prefix);
    let first = trying(Kind::Mutex, "k", 1, 60 * SECOND);
    let before = revision();
    let token = ask(&store, &first).await.unwrap().unwrap().tokens[0];
    assert!(before < token.first && token.first <= revision(), "{token:?}");
    assert_eq!(token.first, token.last);
    // It has only one, so a grant that is told again has another revision.
    let again = ask(&store, &first).await.unwrap().unwrap().tokens[0];
    assert!(token.first < again.first && again.first <= revision(), "{again:?}");
    let mut waits = queue(&store, &waiting(Kind::Mutex, "k", 2)).await;
    assert!(release(&store, &first).await);
    let of_waiter = hears_grant(&mut waits).await;
    assert!(again.first < of_waiter && of_waiter <= revision(), "{of_waiter}");
}

/// A waiter whose notice is lost asks again, and nothing was written meanwhile.
#[tokio::test]
async fn a_grant_by_a_notice_that_was_lost_is_told_again() {
    let store = with_revisions(&new_prefix());
    let first = trying(Kind::Fair, "k", 1, 60 * SECOND);
    assert!(granted(&store, &first).await);
    let second = waiting(Kind::Fair, "k", 2);
    let mut waits = queue(&store, &second).await;
    assert!(release(&store, &first).await);
    let told = hears_grant(&mut waits).await;
    for _ in 0..3 {
        let again = ask(&store, &second).await.unwrap().unwrap().tokens[0];
        assert!(again.first > told, "{again:?}, {told}");
    }
}

#[tokio::test]
async fn managers_whose_tokens_differ_in_form_do_not_share_a_lock() {
    let prefix = new_prefix();
    let (scaled, revisions) = (store(&SERVER.url(), &prefix), with_revisions(&prefix));
    for (one, other) in [(&scaled, &revisions), (&revisions, &scaled)] {
        for kind in [Kind::Mutex, Kind::Fair, Kind::Write] {
            let holds = trying(kind, "k", 1, 60 * SECOND);
            assert!(granted(one, &holds).await);
            for request in [trying(kind, "k", 2, 60 * SECOND), waiting(kind, "k", 2)] {
                let error = ask(other, &request).await.unwrap_err();
                assert_eq!(error.kind(), StoreErrorKind::ForeignData, "{error}");
                let text = error.to_string();
                assert!(text.contains(&format!("{prefix}k")) && text.contains("tokens=revision"), "{text}");
            }
            assert_eq!(keys(&format!("{prefix}k/")).len(), 1, "the waiter has left nothing");
            assert!(release(one, &holds).await);
        }
        assert_eq!(keys(&format!("{prefix}k/")), [""; 0]);
    }
}
