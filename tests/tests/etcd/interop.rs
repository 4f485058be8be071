//! Locks that are shared with `etcdctl lock`.

use std::time::{Duration, Instant};

use lock_runtime::{LockError, LockManager};
use lock_tests::database_server::{LockServer, connect};
use lock_tests::etcd::Etcd;
use lock_tests::{EtcdServer, Helper, eventually};
use tokio::time::timeout;

use crate::entries::{Ctl, assert_only_epochs_are_left, await_entries, entries, name};

const HOLDER: &str = env!("CARGO_BIN_EXE_holder");

/// Time-out for something that needs no time, on a busy machine. Shorter than [`LONG`], so that no
/// lease that has ended is the reason.
const SLACK: Duration = Duration::from_secs(30);

/// A lease that no pause of a busy machine outlasts.
const LONG: Duration = Duration::from_secs(60);

/// Time in which somebody who gets in by mistake would do so.
const MEANWHILE: Duration = Duration::from_millis(700);

/// Says its revision when it has the lock, and holds the lock until it is interrupted.
fn etcdctl_lock(server: &EtcdServer, lock: &str, ttl: u64) -> Helper {
    server.spawn_etcdctl(&["lock", &name(lock), &format!("--ttl={ttl}")])
}

/// Whether a helper says nothing for a while.
fn is_silent(helper: &mut Helper) -> bool {
    tokio::task::block_in_place(|| helper.try_line(MEANWHILE)).is_none()
}

fn line(helper: &mut Helper) -> String {
    tokio::task::block_in_place(|| helper.line(SLACK))
}

/// Interrupts an `etcdctl lock`, which releases.
fn release(mut etcdctl: Helper) {
    tokio::task::block_in_place(|| {
        etcdctl.process().interrupt();
        etcdctl.process().wait(SLACK);
    });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_waits_for_the_other_and_gets_in_at_once_and_tokens_grow() {
    let server = Etcd::start_beside_a_busy_disk().await;
    let locks = connect(&server, LONG).await;
    let first = locks.mutex("k").acquire().await.unwrap();
    // It says the revision of its grant, and holds the lock until there is a file.
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("end");
    let command = format!("echo $ETCD_LOCK_REV; until [ -e '{}' ]; do sleep 0.05; done", file.display());
    let mut waits = server.spawn_etcdctl(&["lock", "lock:k", "--ttl=60", "--", "sh", "-c", &command]);
    assert!(is_silent(&mut waits), "ours holds");
    let before = first.fencing_token().get();
    first.release().await.unwrap();
    let revision: u64 = line(&mut waits).parse().unwrap();

    let busy = locks.mutex("k").no_wait().acquire().await.unwrap_err();
    assert!(busy.is_busy(), "{busy:?}");
    let ours = tokio::spawn(locks.mutex("k").wait(LONG * 2).acquire());
    await_entries(&server, "k", 2, SLACK).await;
    tokio::time::sleep(MEANWHILE).await;
    assert!(!ours.is_finished(), "etcdctl holds");
    std::fs::write(&file, "").unwrap();
    let second = timeout(SLACK, ours).await.unwrap().unwrap().unwrap();
    let after = second.fencing_token().get();
    // 1024 of our tokens are of one revision.
    assert!(before >> 10 < revision && revision < after >> 10, "{before}, {revision}, {after}");
    second.release().await.unwrap();
    tokio::task::block_in_place(|| waits.finish(SLACK));
    assert_only_epochs_are_left(&server, SLACK).await;
}

/// Names are those of other clients, if the manager has no prefix. The address may have one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_has_the_name_that_other_clients_give_it() {
    let server = Etcd::start_beside_a_busy_disk().await;
    for folder in ["", "shop/", "a%20b/"] {
        let url = format!("{}{folder}", server.url());
        let locks = LockManager::builder().prefix("").lease(LONG).connect(url).await.unwrap();
        let guard = locks.mutex("order/42").acquire().await.unwrap();
        let name = format!("{}order/42", folder.replace("%20", " "));
        let mut etcdctl = server.spawn_etcdctl(&["lock", &name]);
        assert!(is_silent(&mut etcdctl), "{name}");
        guard.release().await.unwrap();
        assert!(line(&mut etcdctl).starts_with(&format!("{name}/")), "{name}");
        assert!(locks.mutex("order/42").try_acquire().await.unwrap().is_none());
        release(etcdctl);
    }
    assert_only_epochs_are_left(&server, SLACK).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_mixed_queue_is_served_in_its_order() {
    let server = Etcd::start_beside_a_busy_disk().await;
    let [one, two, three] =
        [connect(&server, LONG).await, connect(&server, LONG).await, connect(&server, LONG).await];
    let holder = one.mutex("k").acquire().await.unwrap();
    let second = tokio::spawn(two.mutex("k").wait(LONG * 2).acquire());
    await_entries(&server, "k", 2, SLACK).await;
    let mut third = etcdctl_lock(&server, "k", 60);
    await_entries(&server, "k", 3, SLACK).await;
    let fourth = tokio::spawn(three.fair("k").wait(LONG * 2).acquire());
    await_entries(&server, "k", 4, SLACK).await;
    let mut fifth = etcdctl_lock(&server, "k", 60);
    let queue = await_entries(&server, "k", 5, SLACK).await;
    let status = one.status("k").await.unwrap();
    assert_eq!((status.is_locked(), status.waiters), (true, 4));

    assert!(!second.is_finished());
    holder.release().await.unwrap();
    let second = timeout(SLACK, second).await.unwrap().unwrap().unwrap();
    assert!(is_silent(&mut third) && !fourth.is_finished());
    second.release().await.unwrap();
    assert_eq!(line(&mut third), queue[2]);
    assert!(is_silent(&mut fifth) && !fourth.is_finished());
    release(third);
    let fourth = timeout(SLACK, fourth).await.unwrap().unwrap().unwrap();
    assert!(is_silent(&mut fifth));
    fourth.release().await.unwrap();
    assert_eq!(line(&mut fifth), queue[4]);
    release(fifth);
    assert_only_epochs_are_left(&server, SLACK).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_the_death_of_either_the_other_gets_in() {
    let server = Etcd::start_beside_a_busy_disk().await;
    let locks = connect(&server, LONG).await;
    let mut dies = etcdctl_lock(&server, "k", 2);
    line(&mut dies);
    let ours = tokio::spawn(locks.mutex("k").wait(LONG * 2).acquire());
    await_entries(&server, "k", 2, SLACK).await;
    // Its lease is kept for as long as it lives.
    tokio::time::sleep(Duration::from_secs(4)).await;
    assert!(!ours.is_finished());
    tokio::task::block_in_place(|| dies.kill());
    let guard = timeout(SLACK, ours).await.unwrap().unwrap().unwrap();
    guard.release().await.unwrap();

    let mut dies = Helper::spawn(HOLDER, [&*server.url(), "lease=3000"]);
    assert_eq!(line(&mut dies), "ready");
    assert!(tokio::task::block_in_place(|| dies.ask("acquire k")).starts_with("acquired"));
    let mut waits = etcdctl_lock(&server, "k", 60);
    await_entries(&server, "k", 2, SLACK).await;
    tokio::time::sleep(Duration::from_secs(4)).await;
    assert!(is_silent(&mut waits), "ours is renewed");
    let asked = Instant::now();
    let state = tokio::task::block_in_place(|| dies.ask("state k"));
    let left = state.strip_prefix("held ").and_then(|left| left.parse().ok()).map(Duration::from_millis);
    tokio::task::block_in_place(|| dies.kill());
    line(&mut waits);
    assert!(asked.elapsed() >= left.unwrap(), "{state}, after {:?}", asked.elapsed());
    release(waits);
    assert_only_epochs_are_left(&server, SLACK).await;
}

/// The next one is in at once, and the body is cancelled at the next renewal.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hold_whose_key_etcdctl_deletes_is_lost_and_its_body_cancelled() {
    let lease = Duration::from_secs(6);
    let server = Etcd::start_beside_a_busy_disk().await;
    let locks = connect(&server, lease).await;
    let (inside, is_inside) = tokio::sync::oneshot::channel();
    let body = locks.mutex("body").with(async |_| {
        let _ = inside.send(());
        std::future::pending::<()>().await;
    });
    let body = tokio::spawn(body);
    is_inside.await.unwrap();
    let guard = locks.mutex("guard").acquire().await.unwrap();
    for lock in ["body", "guard"] {
        let [entry] = &entries(&server, lock)[..] else { panic!("one entry") };
        assert_eq!(server.ctl(&["del", entry]).unwrap().trim(), "1");
    }
    let begun = Instant::now();
    let mut next = etcdctl_lock(&server, "body", 60);
    line(&mut next);
    let lost = timeout(lease + SLACK, body).await.unwrap().unwrap().unwrap_err();
    assert!(matches!(lost, LockError::Lost { .. }), "{lost:?}");
    guard.lost().await;
    assert!(begun.elapsed() < lease + SLACK, "{:?}", begun.elapsed());
    assert!(matches!(guard.release().await.unwrap_err(), LockError::Lost { .. }));
    assert_eq!(entries(&server, "body").len(), 1, "that of etcdctl");
    release(next);
    assert_only_epochs_are_left(&server, SLACK).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_without_a_lease_is_an_error_that_names_it() {
    fn assert_names(error: &LockError) {
        assert!(error.to_string().contains("\"lock:k/stray\""), "{error}");
        assert!(!error.is_busy(), "{error:?}");
    }
    let server = Etcd::start_beside_a_busy_disk().await;
    let (one, other) = (connect(&server, LONG).await, connect(&server, LONG).await);
    server.ctl(&["put", "lock:k/stray", "42"]).unwrap();
    for wait in [Duration::ZERO, Duration::from_secs(1)] {
        assert_names(&one.mutex("k").wait(wait).acquire().await.unwrap_err());
        assert_names(&one.fair("k").wait(wait).acquire().await.unwrap_err());
    }
    // The other keys are not to blame.
    let several = one.multi(["j", "k"]).wait(Duration::from_secs(1)).acquire().await.unwrap_err();
    assert_names(&several);
    assert_eq!(entries(&server, "k"), ["lock:k/stray"]);
    assert_eq!(entries(&server, "j"), [""; 0]);
    server.ctl(&["del", "lock:k/stray"]).unwrap();

    // One behind the holder does not touch the hold.
    let guard = one.mutex("k").acquire().await.unwrap();
    server.ctl(&["put", "lock:k/stray", "42"]).unwrap();
    assert_names(&other.mutex("k").wait(Duration::from_secs(1)).acquire().await.unwrap_err());
    guard.release().await.unwrap();
    server.ctl(&["del", "lock:k/stray"]).unwrap();
    other.mutex("k").acquire().await.unwrap().release().await.unwrap();
    assert_only_epochs_are_left(&server, SLACK).await;
}

/// Names nest, for `etcdctl` too: the queue of `a` has all keys that begin with `a/`.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hold_of_a_longer_name_blocks_the_shorter_one() {
    async fn is_free(locks: &LockManager, lock: &str) -> bool {
        match locks.mutex(lock).try_acquire().await.unwrap() {
            Some(guard) => guard.release().await.map(|()| true).unwrap(),
            None => false,
        }
    }
    let server = Etcd::start_beside_a_busy_disk().await;
    let (one, other) = (connect(&server, LONG).await, connect(&server, LONG).await);
    let inner = one.mutex("a/b").acquire().await.unwrap();
    assert!(!is_free(&one, "a").await && !is_free(&other, "a").await);
    assert!(is_free(&other, "ab").await && is_free(&other, "a/c").await);
    let mut etcdctl = etcdctl_lock(&server, "a", 60);
    let ours = tokio::spawn(other.mutex("a").wait(LONG * 2).acquire());
    await_entries(&server, "a", 3, SLACK).await;
    assert!(is_silent(&mut etcdctl) && !ours.is_finished());
    inner.release().await.unwrap();
    // Either may have come first.
    let guard = async { timeout(SLACK, ours).await.unwrap().unwrap().unwrap() };
    line_then_release(etcdctl, guard).await;
    // The shorter one blocks no longer one.
    let outer = one.mutex("a").acquire().await.unwrap();
    assert!(is_free(&other, "a/b").await);
    outer.release().await.unwrap();
    let mut etcdctl = etcdctl_lock(&server, "a/b", 60);
    line(&mut etcdctl);
    assert!(!is_free(&one, "a").await && !is_free(&one, "a/b").await);
    release(etcdctl);
    eventually(async || is_free(&one, "a").await, SLACK).await;
    assert_only_epochs_are_left(&server, SLACK).await;
}

/// Releases both, in the order in which they get in.
async fn line_then_release(mut etcdctl: Helper, guard: impl Future<Output = lock_runtime::LockGuard>) {
    let etcdctl = tokio::task::spawn_blocking(move || {
        etcdctl.line(SLACK);
        etcdctl.process().interrupt();
        etcdctl.process().wait(SLACK);
    });
    let (guard, etcdctl) = tokio::join!(async { guard.await.release().await }, etcdctl);
    guard.unwrap();
    etcdctl.unwrap();
}
