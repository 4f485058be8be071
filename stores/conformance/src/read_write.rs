//! Many readers or one writer.

use lock_core::store::{ListenerPolicy, Takeover};
use tokio::task::JoinSet;

use super::*;

fn read(name: &str, number: u32) -> AcquireRequest {
    wish(Kind::Read, name, number)
}

fn write(name: &str, number: u32) -> AcquireRequest {
    wish(Kind::Write, name, number)
}

fn leased_as(kind: Kind, name: &str, number: u32, lease: Duration) -> AcquireRequest {
    AcquireRequest::new(vec![item_of(kind, name, number)], lease, PATIENCE)
}

pub async fn readers_share_a_key(Subject { store, other, .. }: Subject) {
    let mut last = 0;
    for (number, store) in (1..).zip([&store, &other, &store]) {
        let granted = grant(store, read("a", number)).await;
        assert!(granted.tokens[0].first > last, "{granted:?} after {last}");
        last = granted.tokens[0].last;
    }
    assert_kind(&store, "a", Kind::Read, &[1, 2, 3]).await;
    assert_remaining(&store, "a", long()).await;
    assert_last_token(&status(&other, "a").await, last);
    for kind in kinds_of_locks().into_iter().filter(|kind| *kind != Kind::Read) {
        assert_busy_for(&busy(&other, wish(kind, "a", 4)).await, long());
    }
}

pub async fn a_writer_excludes_everybody(Subject { store, other, .. }: Subject) {
    grant(&store, write("a", 1)).await;
    for kind in kinds_of_locks() {
        assert_busy_for(&busy(&other, wish(kind, "a", 2)).await, long());
    }
    assert_kind(&other, "a", Kind::Write, &[1]).await;
    assert_remaining(&other, "a", long()).await;
    assert_eq!(give_back(&store, &write("a", 1)).await.held, [true]);
    assert_free(&other, "a").await;
    grant(&other, write("a", 2)).await;
}

pub async fn resent_acquire_is_the_same_grant_and_never_shortens(Subject { store, .. }: Subject) {
    for (kind, name) in [(Kind::Read, "a"), (Kind::Write, "b")] {
        let first = grant(&store, wish(kind, name, 1)).await;
        let second = grant(&store, leased_as(kind, name, 1, short())).await;
        assert!(second.tokens[0].first > first.tokens[0].last);
        assert_kind(&store, name, kind, &[1]).await;
        assert_remaining(&store, name, long()).await;
        grant(&store, leased_as(kind, name, 1, 3 * long())).await;
        assert_remaining(&store, name, 3 * long()).await;
        assert!(remaining(&store, name).await > long(), "it was lengthened");
        // One release gives it back, however often it was sent.
        give_back(&store, &wish(kind, name, 1)).await;
        assert_free(&store, name).await;
    }
}

pub async fn each_reader_has_its_own_lease(Subject { store, .. }: Subject) {
    grant(&store, leased_as(Kind::Read, "a", 1, short())).await;
    grant(&store, read("a", 2)).await;
    rest(short_is_over()).await;
    assert_kind(&store, "a", Kind::Read, &[2]).await;
    assert_eq!(renew(&store, vec![item_of(Kind::Read, "a", 1)], long()).await, [Renewed::Gone]);
    assert_eq!(give_back(&store, &read("a", 1)).await.held, [false]);
    assert_kind(&store, "a", Kind::Read, &[2]).await;
    // A reader whose lease has ended can read again.
    grant(&store, read("a", 1)).await;
    assert_kind(&store, "a", Kind::Read, &[1, 2]).await;
}

pub async fn a_key_is_taken_until_its_last_reader_ends(Subject { store, .. }: Subject) {
    grant(&store, leased_as(Kind::Read, "a", 1, 3 * long())).await;
    grant(&store, read("a", 2)).await;
    assert_remaining(&store, "a", 3 * long()).await;
    assert_busy_longer_than(&busy(&store, write("a", 3)).await, long());
    // The hold that ends last is released: the other one's lease counts.
    give_back(&store, &read("a", 1)).await;
    assert_kind(&store, "a", Kind::Read, &[2]).await;
    assert_remaining(&store, "a", long()).await;
    assert_eq!(renew(&store, vec![item_of(Kind::Read, "a", 2)], 2 * long()).await, [Renewed::Held]);
    assert_remaining(&store, "a", 2 * long()).await;
    assert_eq!(renew(&store, vec![item_of(Kind::Read, "a", 2)], short()).await, [Renewed::Held]);
    assert_remaining(&store, "a", 2 * long()).await;
}

pub async fn release_of_one_reader_leaves_the_others(Subject { store, other, .. }: Subject) {
    let third = Arc::new(read("a", 3));
    for request in [Arc::new(read("a", 1)), Arc::new(read("a", 2)), Arc::clone(&third)] {
        grant(&store, request).await;
    }
    assert_eq!(give_back(&other, &read("a", 2)).await.held, [true]);
    assert_kind(&store, "a", Kind::Read, &[1, 3]).await;
    assert_eq!(give_back(&other, &read("a", 2)).await.held, [false]);
    withdraw(&store, &third).await;
    assert_kind(&store, "a", Kind::Read, &[1]).await;
    busy(&other, write("a", 4)).await;
    give_back(&store, &read("a", 1)).await;
    assert_free(&store, "a").await;
    grant(&other, write("a", 4)).await;
}

pub async fn release_by_a_stranger_touches_nothing(Subject { store, other, .. }: Subject) {
    grant(&store, read("a", 1)).await;
    grant(&store, write("b", 1)).await;
    for (kind, name) in [(Kind::Read, "a"), (Kind::Write, "b")] {
        for asked in [Kind::Read, Kind::Write] {
            assert_eq!(give_back(&other, &wish(asked, name, 2)).await.held, [false]);
            assert_eq!(renew(&other, vec![item_of(asked, name, 2)], 3 * long()).await, [Renewed::Gone]);
        }
        assert_kind(&store, name, kind, &[1]).await;
        assert_remaining(&store, name, long()).await;
    }
}

/// Tests a downgrade whose answer was lost: the hold is of another kind than its owner thinks.
pub async fn calls_go_by_what_the_owner_has(Subject { store, .. }: Subject) {
    for (has, thinks) in [(Kind::Read, Kind::Write), (Kind::Write, Kind::Read)] {
        grant(&store, wish(has, "a", 1)).await;
        assert_eq!(renew(&store, vec![item_of(thinks, "a", 1)], 2 * long()).await, [Renewed::Held]);
        assert_kind(&store, "a", has, &[1]).await;
        assert_remaining(&store, "a", 2 * long()).await;
        assert_eq!(keep_waiter(&store, item_of(thinks, "a", 1)).await, Renewed::Held);
        assert_eq!(give_back(&store, &wish(thinks, "a", 1)).await.held, [true]);
        assert_free(&store, "a").await;
    }
}

pub async fn a_writer_may_read_too_and_a_reader_may_not_write(Subject { store, .. }: Subject) {
    grant(&store, write("a", 1)).await;
    grant(&store, read("a", 1)).await;
    assert_kind(&store, "a", Kind::Write, &[1, 1]).await;
    busy(&store, read("a", 2)).await;
    busy(&store, write("a", 2)).await;

    grant(&store, read("b", 1)).await;
    busy(&store, write("b", 1)).await;
    assert_kind(&store, "b", Kind::Read, &[1]).await;
}

pub async fn the_last_reader_and_the_writer_wake_who_waits(Subject { store, other, .. }: Subject) {
    let mut reader = watch_for(&other, &Arc::new(waiting(Kind::Read, "a", 8))).await;
    let mut writer = watch_for(&other, &Arc::new(waiting(Kind::Write, "a", 9))).await;
    grant(&store, write("a", 1)).await;
    assert_rivals(&give_back(&store, &write("a", 1)).await, Rivals::Some);
    assert_hears(&mut reader).await;
    assert_hears(&mut writer).await;

    grant(&store, read("a", 1)).await;
    grant(&store, read("a", 2)).await;
    give_back(&store, &read("a", 1)).await;
    drain(&mut reader).await;
    drain(&mut writer).await;
    assert_rivals(&give_back(&store, &read("a", 2)).await, Rivals::Some);
    assert_hears(&mut reader).await;
    assert_hears(&mut writer).await;

    let withdrawn = Arc::new(write("a", 1));
    grant(&store, Arc::clone(&withdrawn)).await;
    withdraw(&store, &withdrawn).await;
    assert_hears(&mut reader).await;
    assert_hears(&mut writer).await;
}

pub async fn an_expired_writer_frees_the_key(Subject { store, .. }: Subject) {
    grant(&store, leased_as(Kind::Write, "a", 1, short())).await;
    rest(short_is_over()).await;
    assert_free(&store, "a").await;
    assert_eq!(renew(&store, vec![item_of(Kind::Write, "a", 1)], long()).await, [Renewed::Gone]);
    assert_eq!(give_back(&store, &write("a", 1)).await.held, [false]);
    grant(&store, read("a", 2)).await;
    assert_kind(&store, "a", Kind::Read, &[2]).await;
}

pub async fn linger_shortens_and_is_told(Subject { store, other, .. }: Subject) {
    for (kind, name) in [(Kind::Read, "a"), (Kind::Write, "b")] {
        let mut waiter = watch_for(&other, &Arc::new(waiting(Kind::Write, name, 9))).await;
        grant(&store, wish(kind, name, 1)).await;
        for (linger, left) in [(long() / 2, long() / 2), (long(), long() / 2)] {
            let linger = ReleaseRequest { linger, ..giving_back(vec![item_of(kind, name, 1)]) };
            assert_eq!(release(&store, linger).await.held, [true]);
            assert_kind(&store, name, kind, &[1]).await;
            assert_remaining(&store, name, left).await;
        }
        assert_hears(&mut waiter).await;
        let linger = ReleaseRequest { linger: short(), ..giving_back(vec![item_of(kind, name, 1)]) };
        release(&store, linger).await;
        rest(short_is_over()).await;
        assert_free(&store, name).await;
    }
    // One of two readers lingers: the other stays as it is.
    grant(&store, read("c", 1)).await;
    grant(&store, read("c", 2)).await;
    release(&store, ReleaseRequest { linger: short(), ..giving_back(vec![item_of(Kind::Read, "c", 1)]) })
        .await;
    rest(short_is_over()).await;
    assert_kind(&store, "c", Kind::Read, &[2]).await;
    assert_remaining(&store, "c", long()).await;
}

pub async fn force_release_frees_readers_and_writers(Subject { store, other, .. }: Subject) {
    let mut waiter = watch_for(&other, &Arc::new(waiting(Kind::Write, "a", 9))).await;
    grant(&store, read("a", 1)).await;
    grant(&store, read("a", 2)).await;
    assert!(force_release(&other, "a").await);
    assert_hears(&mut waiter).await;
    assert_free(&store, "a").await;
    for number in 1..=2 {
        assert_eq!(renew(&store, vec![item_of(Kind::Read, "a", number)], long()).await, [Renewed::Gone]);
    }
    grant(&store, write("a", 3)).await;
    assert!(force_release(&other, "a").await);
    assert_hears(&mut waiter).await;
    assert_free(&store, "a").await;
    assert_eq!(give_back(&store, &write("a", 3)).await.held, [false]);
    assert!(!force_release(&other, "a").await);
    grant(&store, read("a", 1)).await;
}

pub async fn one_of_many_writers_gets_the_key(Subject { store, other, .. }: Subject) {
    let mut rivals = JoinSet::new();
    for rival in 1..=32 {
        let store = Arc::clone(if rival % 2 == 0 { &store } else { &other });
        let request = write("a", rival);
        rivals.spawn(async move { acquire(&store, request).await });
    }
    let answers = rivals.join_all().await;
    assert_eq!(answers.iter().filter(|answer| matches!(answer, Acquired::Granted(_))).count(), 1);
}

pub async fn renew_of_waiters_is_never_gone(Subject { store, .. }: Subject) {
    let unqueued = kinds_of_locks().into_iter().filter(|kind| abilities(|store| !store.queues(*kind)));
    for kind in unqueued {
        let waits = |kept| matches!(kept, Renewed::Waiting(time) if !time.is_zero() && time <= 2 * long());
        assert!(waits(keep_waiter(&store, item_of(kind, "a", 1)).await), "{kind:?}, free");
        grant(&store, wish(Kind::Write, "a", 2)).await;
        assert!(waits(keep_waiter(&store, item_of(kind, "a", 1)).await), "{kind:?}, held");
        give_back(&store, &wish(Kind::Write, "a", 2)).await;
        grant(&store, wish(kind, "a", 1)).await;
        assert_eq!(keep_waiter(&store, item_of(kind, "a", 1)).await, Renewed::Held, "{kind:?}");
        give_back(&store, &wish(kind, "a", 1)).await;
    }
}

pub async fn takeover_is_declined(Subject { store, .. }: Subject) {
    for kind in [Kind::Read, Kind::Write] {
        grant(&store, wish(kind, "a", 1)).await;
        let then =
            Some(Takeover { request: Arc::new(wish(kind, "a", 2)), listeners: ListenerPolicy::Ignore });
        let items = vec![item_of(kind, "a", 1)];
        let released = release(&store, ReleaseRequest { then, ..giving_back(items) }).await;
        assert_eq!((released.held, released.then), (vec![true].into(), None));
        assert_free(&store, "a").await;
    }
}
