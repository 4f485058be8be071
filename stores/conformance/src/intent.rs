//! A waiting writer keeps new readers out.

use super::*;

/// Returns the time after which an intent has ended if it is not kept.
fn over() -> Duration {
    intent_life() + Duration::from_millis(100)
}

fn read(name: &str, number: u32) -> AcquireRequest {
    wish(Kind::Read, name, number)
}

fn writer(name: &str, number: u32) -> Arc<AcquireRequest> {
    Arc::new(waiting(Kind::Write, name, number))
}

pub async fn a_waiting_writer_keeps_new_readers_out(Subject { store, other, .. }: Subject) {
    grant(&store, read("a", 1)).await;
    let answer = busy(&other, writer("a", 9)).await;
    assert_busy_for(&answer, long());
    let answer = busy(&store, read("a", 2)).await;
    assert_busy_at_most(&answer, intent_life());
    // The reader that is in already goes on.
    grant(&store, read("a", 1)).await;
    assert_eq!(renew(&store, vec![item_of(Kind::Read, "a", 1)], 2 * long()).await, [Renewed::Held]);
    assert_kind(&store, "a", Kind::Read, &[1]).await;
    // When the reader is gone, the writer is next.
    give_back(&store, &read("a", 1)).await;
    busy(&store, read("a", 2)).await;
    grant(&other, writer("a", 9)).await;
}

pub async fn a_writer_that_does_not_wait_keeps_nobody_out(Subject { store, other, .. }: Subject) {
    grant(&store, read("a", 1)).await;
    busy(&other, wish(Kind::Write, "a", 9)).await;
    grant(&store, read("a", 2)).await;
}

pub async fn an_intent_ends_by_itself(Subject { store, other, .. }: Subject) {
    grant(&store, read("a", 1)).await;
    busy(&other, writer("a", 9)).await;
    rest(over()).await;
    grant(&store, read("a", 2)).await;
    assert_kind(&store, "a", Kind::Read, &[1, 2]).await;
}

pub async fn an_intent_is_kept(Subject { store, other, .. }: Subject) {
    grant(&store, read("a", 1)).await;
    busy(&other, writer("a", 9)).await;
    for _ in 0..4 {
        rest(intent_life() / 3).await;
        assert!(matches!(keep_waiter(&other, item_of(Kind::Write, "a", 9)).await, Renewed::Waiting(_)));
        busy(&store, read("a", 2)).await;
    }
}

pub async fn an_intent_is_not_kept_when_the_readers_are_gone(Subject { store, other, .. }: Subject) {
    grant(&store, read("a", 1)).await;
    busy(&other, writer("a", 9)).await;
    give_back(&store, &read("a", 1)).await;
    rest(intent_life() / 2).await;
    let kept = keep_waiter(&other, item_of(Kind::Write, "a", 9)).await;
    assert!(matches!(kept, Renewed::Waiting(left) if left < SOON), "{kept:?}");
    // If it had been extended, it would live for longer.
    rest(over() - intent_life() / 2).await;
    grant(&store, read("a", 2)).await;
}

pub async fn a_writer_that_finds_readers_later_is_told_to_ask_again(Subject { store, other, .. }: Subject) {
    // It waits for a writer, and finds readers later.
    grant(&store, wish(Kind::Write, "a", 1)).await;
    busy(&other, writer("a", 9)).await;
    give_back(&store, &wish(Kind::Write, "a", 1)).await;
    grant(&store, read("a", 2)).await;
    let kept = keep_waiter(&other, item_of(Kind::Write, "a", 9)).await;
    assert!(matches!(kept, Renewed::Waiting(left) if left < SOON), "{kept:?}");
    busy(&other, writer("a", 9)).await;
    busy(&store, read("a", 3)).await;
}

pub async fn an_intent_stops_no_writer(Subject { store, other, .. }: Subject) {
    grant(&store, read("a", 1)).await;
    busy(&other, writer("a", 9)).await;
    give_back(&store, &read("a", 1)).await;
    grant(&store, wish(Kind::Write, "a", 2)).await;
    busy(&other, writer("a", 9)).await;
    give_back(&store, &wish(Kind::Write, "a", 2)).await;
    grant(&other, writer("a", 9)).await;
}

pub async fn an_intent_ends_with_the_grant(Subject { store, other, .. }: Subject) {
    grant(&store, read("a", 1)).await;
    busy(&other, writer("a", 9)).await;
    give_back(&store, &read("a", 1)).await;
    grant(&other, writer("a", 9)).await;
    give_back(&other, &writer("a", 9)).await;
    grant(&store, read("a", 2)).await;
}

pub async fn withdraw_of_a_waiting_writer_lets_readers_in(Subject { store, other, .. }: Subject) {
    grant(&store, read("a", 1)).await;
    let request = writer("a", 9);
    busy(&other, Arc::clone(&request)).await;
    let mut reader = watch_for(&store, &Arc::new(waiting(Kind::Read, "a", 2))).await;
    busy(&store, read("a", 2)).await;
    withdraw(&other, &request).await;
    assert_hears(&mut reader).await;
    grant(&store, read("a", 2)).await;
    assert_kind(&store, "a", Kind::Read, &[1, 2]).await;

    // A writer that left no intent takes none back.
    busy(&other, writer("a", 9)).await;
    let stranger = writer("a", 8);
    busy(&store, Arc::clone(&stranger)).await;
    withdraw(&store, &stranger).await;
    busy(&store, read("a", 3)).await;
}

pub async fn a_writer_that_waits_for_a_writer_keeps_nobody_out(Subject { store, other, .. }: Subject) {
    grant(&store, wish(Kind::Write, "a", 1)).await;
    busy(&other, writer("a", 9)).await;
    give_back(&store, &wish(Kind::Write, "a", 1)).await;
    grant(&store, read("a", 2)).await;
}

pub async fn a_writer_that_waits_for_a_mutex_keeps_nobody_out(Subject { store, other, .. }: Subject) {
    for kind in kinds_of_locks().into_iter().filter(|kind| matches!(kind, Kind::Mutex | Kind::Fair)) {
        grant(&store, wish(kind, "a", 1)).await;
        busy(&other, writer("a", 9)).await;
        keep_waiter(&other, item_of(Kind::Write, "a", 9)).await;
        give_back(&store, &wish(kind, "a", 1)).await;
        grant(&store, read("a", 2)).await;
        give_back(&store, &read("a", 2)).await;
    }
}

pub async fn a_late_request_keeps_nobody_out(subject: Subject) {
    grant(&subject.store, read("a", 1)).await;
    let late = AcquireRequest::new(vec![item_of(Kind::Write, "a", 9)], long(), short()).queued(long());
    subject.refused_late(late).await;
    grant(&subject.store, read("a", 2)).await;
}
