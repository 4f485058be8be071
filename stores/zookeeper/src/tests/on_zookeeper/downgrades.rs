//! Writers that become readers, in Curator's form.

use super::*;

async fn downgrade(store: &ZooKeeperStore, request: &AcquireRequest) -> Vec<Renewed> {
    let items = request.items.iter().map(|item| RenewItem::hold(item.clone(), 60 * SECOND)).collect();
    store.downgrade(Arc::new(RenewRequest { items, timeout: SLACK })).await.unwrap()
}

/// As Curator's `testContendingDowngrading`: a writer that waits does not get in.
#[tokio::test]
async fn a_downgrade_keeps_the_place_and_lets_readers_in_but_no_writer() {
    let (store, root) = new_store();
    let writer = waiting(Kind::Write, "a", 1);
    let token = ask(&store, &writer).await.unwrap().unwrap().tokens[0].last;
    let reader = waiting(Kind::Read, "a", 2);
    let mut reads = queue(&store, &reader).await;
    let other = waiting(Kind::Write, "a", 3);
    let mut writes = queue(&store, &other).await;
    assert_eq!(downgrade(&store, &writer).await, [Renewed::Held]);
    assert!(hears_grant(&mut reads).await > token);
    assert_eq!(writes.try_notice(), None);
    let names = nodes(&format!("{root}/a")).await;
    assert!(names.iter().any(|name| name.ends_with("__READ__0000000000")), "{names:?}");
    assert_eq!(downgrade(&store, &writer).await, [Renewed::Held], "once more");
    // The owner may be named as a writer, or as a reader.
    assert_eq!(renew(&store, &writer, 60 * SECOND).await, [Renewed::Held]);
    assert!(release(&store, &waiting(Kind::Read, "a", 1)).await);
    assert!(release(&store, &reader).await);
    hears_grant(&mut writes).await;
    assert!(release(&store, &other).await);
    assert_eq!(nodes(&format!("{root}/a")).await, [""; 0]);
}

/// A waiter behind nothing but the writer's entry is not let in by its end.
#[tokio::test]
async fn nobody_but_readers_gets_in_with_the_end_of_the_writers_entry() {
    let (store, root) = new_store();
    for kind in [Kind::Write, Kind::Mutex, Kind::Fair] {
        let writer = waiting(Kind::Write, "a", 1);
        assert!(granted(&store, &writer).await);
        let other = waiting(kind, "a", 2);
        let mut watch = queue(&store, &other).await;
        assert_eq!(downgrade(&store, &writer).await, [Renewed::Held]);
        let heard = tokio::time::timeout(SECOND / 2, watch.notice()).await;
        assert!(heard.is_err(), "{kind:?}: {heard:?}");
        assert!(!granted(&store, &other).await, "{kind:?}");
        assert!(release(&store, &waiting(Kind::Read, "a", 1)).await);
        hears_grant(&mut watch).await;
        assert!(release(&store, &other).await);
        assert_eq!(nodes(&format!("{root}/a")).await, [""; 0]);
    }
}

/// The end of the writer's entry is no loss.
#[tokio::test]
async fn a_downgraded_hold_is_not_told_as_lost() {
    let (store, _) = new_store();
    let mut lost = store.lost().unwrap();
    for _ in 0..20 {
        let writer = waiting(Kind::Write, "a", 1);
        assert!(granted(&store, &writer).await);
        assert_eq!(renew(&store, &writer, 60 * SECOND).await, [Renewed::Held]);
        // Its watch begins.
        tokio::time::sleep(SECOND / 20).await;
        assert_eq!(downgrade(&store, &writer).await, [Renewed::Held]);
        assert!(tokio::time::timeout(SECOND / 20, &mut lost).await.is_err());
        assert!(release(&store, &writer).await);
    }
}

#[tokio::test]
async fn renewals_beside_a_downgrade_do_not_miss_the_hold() {
    let (store, _) = new_store();
    for _ in 0..20 {
        let writer = waiting(Kind::Write, "a", 1);
        assert!(granted(&store, &writer).await);
        let renewals = async {
            let mut all = Vec::new();
            for _ in 0..10 {
                all.extend(renew(&store, &writer, 60 * SECOND).await);
            }
            all
        };
        let (turned, renewed) = tokio::join!(downgrade(&store, &writer), renewals);
        assert_eq!(turned, [Renewed::Held]);
        let is_held = |answer: &Renewed| matches!(answer, Renewed::Held | Renewed::Unknown);
        assert!(renewed.iter().all(is_held), "{renewed:?}");
        assert_eq!(renew(&store, &writer, 60 * SECOND).await, [Renewed::Held]);
        assert!(release(&store, &writer).await);
    }
}

#[tokio::test]
async fn a_writer_whose_entry_was_deleted_is_told() {
    let (store, root) = new_store();
    let writer = waiting(Kind::Write, "a", 1);
    assert!(granted(&store, &writer).await);
    delete_all(&format!("{root}/a")).await;
    assert_eq!(downgrade(&store, &writer).await, [Renewed::Gone]);
    assert_eq!(nodes(&format!("{root}/a")).await, [""; 0]);
}

/// The answer may be lost: whatever there is, a release deletes it.
#[tokio::test]
async fn a_downgrade_that_was_dropped_leaves_nothing_behind_its_release() {
    let (store, root) = new_store();
    for pause in 0..30 {
        let writer = waiting(Kind::Write, "a", 1);
        assert!(granted(&store, &writer).await);
        tokio::select! {
            biased;
            answer = downgrade(&store, &writer) => drop(answer),
            () = tokio::time::sleep(Duration::from_micros(100 * pause)) => {}
        }
        release(&store, &writer).await;
        let mut left = nodes(&format!("{root}/a")).await;
        for _ in 0..300 {
            if left.is_empty() {
                break;
            }
            tokio::time::sleep(SECOND / 10).await;
            left = nodes(&format!("{root}/a")).await;
        }
        assert_eq!(left, [""; 0], "{pause}");
    }
}
