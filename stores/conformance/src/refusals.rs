//! Steps that a store does not claim are refused without a trace.

use lock_core::Replication;
use lock_core::store::{ListenerPolicy, MAX_TOKENS, ScanRequest, StoreErrorKind, Takeover};

use super::*;

/// Checks that the store refuses what it lacks, as far as a refusal can be seen.
pub(super) async fn check(Subject { store, _keeps, .. }: Subject, lacked: Vec<Need>) {
    for need in lacked {
        match need {
            Need::Several => several(&store).await,
            Need::Fair => kinds(&store, &[Kind::Fair]).await,
            Need::ReadWrite => kinds(&store, &[Kind::Read, Kind::Write]).await,
            Need::Downgrade => downgrades(&store).await,
            Need::Shortens => lingering(&store).await,
            Need::Takeovers => takeovers(&store).await,
            Need::Direct => direct_grants(&store).await,
            Need::Pushed => drop(watch_for(&store, &Arc::new(request(&["pushed"], 1))).await),
            Need::Ranges => ranges(&store).await,
            Need::Semaphores => assert!(store.semaphores().is_none()),
            Need::Latches => assert!(store.latches().is_none()),
            Need::Scan => scans(&store).await,
            // A store that lacks these has nothing to refuse.
            Need::Listeners
            | Need::ClockTokens
            | Need::OwnTokens
            | Need::Floors
            | Need::ByClock
            | Need::Races
            | Need::Queues
            | Need::FreeQueues
            | Need::Intents => {}
        }
    }
}

#[track_caller]
fn assert_unsupported<T: fmt::Debug>(answer: Result<T, StoreError>, what: &str) {
    match answer {
        Err(error) if error.kind() == StoreErrorKind::Unsupported => {}
        other => panic!("{what}: not claimed, and not refused as `Unsupported`, but {other:?}"),
    }
}

/// Checks that nothing was ever taken under this name.
async fn assert_untouched(store: &Arc<dyn LockStore>, name: &str) {
    assert_eq!(status(store, name).await, LockStatus::free(), "{name} was refused, and left a trace");
}

async fn several(store: &Arc<dyn LockStore>) {
    for wish in [request(&["one", "two"], 1), request(&["one", "two"], 1).queued(long())] {
        assert_unsupported(store.acquire(Arc::new(wish)).await, "two keys in one request");
        assert_untouched(store, "one").await;
        assert_untouched(store, "two").await;
    }
}

async fn kinds(store: &Arc<dyn LockStore>, lacked: &[Kind]) {
    for &kind in lacked {
        for wish in [wish(kind, "kind", 1), waiting(kind, "kind", 1)] {
            assert_unsupported(store.acquire(Arc::new(wish)).await, &format!("{kind:?}"));
            assert_untouched(store, "kind").await;
        }
        // Nor does it disturb the holder of a mutex.
        grant(store, request(&["mutex"], 1)).await;
        assert_unsupported(store.acquire(Arc::new(waiting(kind, "mutex", 2))).await, &format!("{kind:?}"));
        assert_held_by(store, "mutex", 1).await;
        give_back(store, &request(&["mutex"], 1)).await;
        grant(store, request(&["mutex"], 3)).await;
        give_back(store, &request(&["mutex"], 3)).await;
    }
}

async fn downgrades(store: &Arc<dyn LockStore>) {
    let items = vec![RenewItem::hold(item_of(Kind::Write, "downgrade", 1), long())];
    let writes = abilities(|store| store.read_write);
    if writes {
        grant(store, wish(Kind::Write, "downgrade", 1)).await;
    }
    let request = Arc::new(RenewRequest { items, timeout: PATIENCE });
    assert_unsupported(store.downgrade(request).await, "a downgrade");
    if writes {
        assert_kind(store, "downgrade", Kind::Write, &[1]).await;
    } else {
        assert_untouched(store, "downgrade").await;
    }
}

async fn lingering(store: &Arc<dyn LockStore>) {
    grant(store, request(&["linger"], 1)).await;
    let lingering = ReleaseRequest { linger: long() / 2, ..giving_back(items(&["linger"], 1)) };
    assert_unsupported(store.release(Arc::new(lingering)).await, "a lingering release");
    assert_held_by(store, "linger", 1).await;
    assert_remaining(store, "linger", long()).await;
    assert_eq!(give_back(store, &request(&["linger"], 1)).await.held, [true]);
}

async fn takeovers(store: &Arc<dyn LockStore>) {
    grant(store, request(&["takeover"], 1)).await;
    let then = Takeover { request: Arc::new(request(&["takeover"], 2)), listeners: ListenerPolicy::Ignore };
    let release = ReleaseRequest { then: Some(then), ..giving_back(items(&["takeover"], 1)) };
    let released = super::release(store, release).await;
    assert_eq!((released.held, released.then), (vec![true].into(), None), "takeovers are not claimed");
    assert_free(store, "takeover").await;
}

/// Checks that a release leaves the key to its waiter, and does not grant it.
async fn direct_grants(store: &Arc<dyn LockStore>) {
    let queue = abilities(|store| [Kind::Fair, Kind::Mutex].into_iter().find(|kind| store.queues(*kind)));
    let Some(kind) = queue else { return };
    let waiter = Arc::new(waiting(kind, "direct", 1));
    grant(store, wish(kind, "direct", 9)).await;
    let _watch = wait_in_line(store, &waiter).await;
    give_back(store, &wish(kind, "direct", 9)).await;
    assert_free(store, "direct").await;
    grant(store, waiter).await;
}

async fn ranges(store: &Arc<dyn LockStore>) {
    let tokens = grant(store, request(&["range"], 1).tokens(MAX_TOKENS)).await.tokens;
    assert_eq!(tokens[0].first, tokens[0].last, "only one token is claimed");
}

pub(super) async fn replicas(store: &Arc<dyn LockStore>) {
    let wish = request(&["replicas"], 1).replicated(Replication::at_least(1, PATIENCE));
    assert_unsupported(store.acquire(Arc::new(wish)).await, "a grant that replicas confirm");
    assert_untouched(store, "replicas").await;
}

async fn scans(store: &Arc<dyn LockStore>) {
    let page = ScanRequest { prefix: String::new(), cursor: None, timeout: PATIENCE };
    assert_unsupported(store.scan(page).await, "a scan");
}
