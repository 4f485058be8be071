//! Releases.

use super::*;

fn lingering(items: Vec<Item>, linger: Duration) -> ReleaseRequest {
    ReleaseRequest { linger, ..giving_back(items) }
}

pub async fn release_frees_the_key(Subject { store, other, .. }: Subject) {
    grant(&store, request(&["a"], 1)).await;
    let released = release(&store, giving_back(items(&["a"], 1))).await;
    assert_eq!((&released.held, &released.then), (&vec![true].into(), &None));
    assert_rivals(&released, Rivals::None);
    assert_free(&store, "a").await;
    grant(&other, request(&["a"], 2)).await;
}

pub async fn release_said_twice_finds_nothing(Subject { store, .. }: Subject) {
    grant(&store, request(&["a"], 1)).await;
    assert_eq!(release(&store, giving_back(items(&["a"], 1))).await.held, [true]);
    assert_eq!(release(&store, giving_back(items(&["a"], 1))).await.held, [false]);
}

pub async fn release_by_a_stranger_touches_nothing(Subject { store, other, .. }: Subject) {
    grant(&store, request(&["a"], 1)).await;
    let names = together(&["a", "b"]);
    assert_eq!(*release(&other, giving_back(items(names, 2))).await.held, *vec![false; names.len()]);
    assert_held_by(&store, "a", 1).await;
    assert_remaining(&store, "a", long()).await;
    assert_free(&store, "b").await;
}

pub async fn release_after_the_lease_finds_nothing(Subject { store, .. }: Subject) {
    grant(&store, leased(&["a"], 1, short())).await;
    rest(short_is_over()).await;
    assert_eq!(release(&store, giving_back(items(&["a"], 1))).await.held, [false]);
}

pub async fn release_after_the_lease_touches_nothing_of_the_next_holder(Subject { store, .. }: Subject) {
    grant(&store, leased(&["a"], 1, short())).await;
    rest(short_is_over()).await;
    grant(&store, request(&["a"], 2)).await;
    assert_eq!(release(&store, giving_back(items(&["a"], 1))).await.held, [false]);
    assert_held_by(&store, "a", 2).await;
}

pub async fn release_of_two_items_answers_for_each(Subject { store, .. }: Subject) {
    grant(&store, request(&["a", "b", "c"], 1)).await;
    force_release(&store, "b").await;
    grant(&store, request(&["b"], 2)).await;
    let released = release(&store, giving_back(items(&["a", "b", "c"], 1))).await;
    assert_eq!(released.held, [true, false, true]);
    assert_free(&store, "a").await;
    assert_held_by(&store, "b", 2).await;
    assert_free(&store, "c").await;
}

pub async fn linger_keeps_the_key_taken_and_never_lengthens(Subject { store, .. }: Subject) {
    grant(&store, leased(&["a"], 1, 3 * long())).await;
    assert_eq!(release(&store, lingering(items(&["a"], 1), long())).await.held, [true]);
    let answer = busy(&store, request(&["a"], 2)).await;
    assert_busy_at_most(&answer, long());
    assert_remaining(&store, "a", long()).await;

    // More than the remaining lease: nothing changes.
    assert_eq!(release(&store, lingering(items(&["a"], 1), 3 * long())).await.held, [true]);
    assert_remaining(&store, "a", long()).await;

    release(&store, lingering(items(&["a"], 1), short())).await;
    assert!(remaining(&store, "a").await <= short() + grain());
    rest(short_is_over()).await;
    assert_free(&store, "a").await;
    assert_eq!(release(&store, lingering(items(&["a"], 1), long())).await.held, [false]);
    assert_free(&store, "a").await;
}

pub async fn linger_works_on_two_items(Subject { store, .. }: Subject) {
    grant(&store, leased(&["a"], 1, 3 * long())).await;
    grant(&store, leased(&["b"], 1, long() / 2)).await;
    let released = release(&store, lingering(items(&["a", "b", "c"], 1), long())).await;
    assert_eq!(released.held, [true, true, false]);
    assert_remaining(&store, "a", long()).await;
    assert_remaining(&store, "b", long() / 2).await;
    assert_free(&store, "c").await;
}

pub async fn linger_by_a_stranger_touches_nothing(Subject { store, .. }: Subject) {
    grant(&store, request(&["a"], 1)).await;
    assert_eq!(release(&store, lingering(items(&["a"], 2), short())).await.held, [false]);
    assert_held_by(&store, "a", 1).await;
    assert_remaining(&store, "a", long()).await;
}

pub async fn a_lingering_key_can_be_freed_at_once(Subject { store, .. }: Subject) {
    grant(&store, request(&["a"], 1)).await;
    release(&store, lingering(items(&["a"], 1), long() / 2)).await;
    assert_eq!(release(&store, giving_back(items(&["a"], 1))).await.held, [true]);
    assert_free(&store, "a").await;
}
