//! Releases that acquire the key for the next owner in the same step.

use lock_core::store::{ListenerPolicy, Takeover};

use super::*;

/// Releases the keys of owner 1 and acquires them for owner 2.
fn passing_on(names: &[&str], listeners: ListenerPolicy) -> (ReleaseRequest, Arc<AcquireRequest>) {
    let request = Arc::new(leased(names, 2, 3 * long()).tokens(5));
    let then = Some(Takeover { request: Arc::clone(&request), listeners });
    (ReleaseRequest { then, ..giving_back(items(names, 1)) }, request)
}

pub async fn takeover_follows_a_release(Subject { store, other, .. }: Subject) {
    let before = grant(&store, request(&["a"], 1)).await;
    let released = release(&store, passing_on(&["a"], ListenerPolicy::Respect).0).await;
    assert_eq!(released.held, [true]);
    assert_rivals(&released, Rivals::None);
    let then = released.then.unwrap();
    assert_eq!(then.tokens.len(), 1);
    assert!(then.tokens[0].first > before.tokens[0].last);
    assert_eq!(then.tokens[0].last - then.tokens[0].first + 1, tokens_of(5));
    assert!(then.moment >= before.moment);
    assert_held_by(&store, "a", 2).await;
    assert_remaining(&store, "a", 3 * long()).await;
    busy(&other, request(&["a"], 3)).await;
}

pub async fn takeover_happens_only_when_nobody_else_listens(Subject { store, other, .. }: Subject) {
    let mut waiter = watch(&other, &["a"]).await;
    grant(&store, request(&["a"], 1)).await;
    let released = release(&store, passing_on(&["a"], ListenerPolicy::Respect).0).await;
    assert_eq!(released.held, [true]);
    assert_rivals(&released, Rivals::Some);
    assert_eq!(released.then, None);
    assert_free(&store, "a").await;
    assert_hears(&mut waiter).await;
    grant(&other, request(&["a"], 3)).await;
}

pub async fn takeover_happens_only_when_nobody_else_queues(Subject { store, other, .. }: Subject) {
    for listeners in [ListenerPolicy::Respect, ListenerPolicy::Ignore] {
        grant(&store, request(&["a"], 1)).await;
        let waiter = Arc::new(waiting(Kind::Mutex, "a", 3));
        let mut heard = wait_in_line(&other, &waiter).await;
        let released = release(&store, passing_on(&["a"], listeners).0).await;
        assert_eq!((released.held, released.then), (vec![true].into(), None));
        assert_ne!(released.rivals, Rivals::None);
        assert_gets_its_turn(&other, &mut heard, &waiter).await;
        give_back(&other, &waiter).await;
    }
}

pub async fn takeover_is_not_stopped_by_our_own_watch(Subject { store, .. }: Subject) {
    let waiter = watch(&store, &["a"]).await;
    grant(&store, request(&["a"], 1)).await;
    let (request, _) = passing_on(&["a"], ListenerPolicy::Respect);
    let released = release(&store, ReleaseRequest { own_watch: Some(waiter.echo()), ..request }).await;
    assert_rivals(&released, Rivals::None);
    assert!(released.then.is_some());
    assert_held_by(&store, "a", 2).await;
}

pub async fn takeover_is_stopped_by_another_watch_of_ours(Subject { store, .. }: Subject) {
    let waiter = watch(&store, &["a"]).await;
    let mut another = watch(&store, &["a"]).await;
    grant(&store, request(&["a"], 1)).await;
    let (request, _) = passing_on(&["a"], ListenerPolicy::Respect);
    let released = release(&store, ReleaseRequest { own_watch: Some(waiter.echo()), ..request }).await;
    assert_rivals(&released, Rivals::Some);
    assert_eq!(released.then, None);
    assert_free(&store, "a").await;
    assert_hears(&mut another).await;
}

pub async fn takeover_ignores_phantoms_when_told(Subject { store, other, .. }: Subject) {
    let _phantom = watch(&other, &["a"]).await;
    grant(&store, request(&["a"], 1)).await;
    let released = release(&store, passing_on(&["a"], ListenerPolicy::Ignore).0).await;
    assert_eq!(released.held, [true]);
    assert!(released.then.is_some());
    assert_held_by(&store, "a", 2).await;
}

pub async fn takeover_of_two_items(Subject { store, .. }: Subject) {
    let before = grant(&store, request(&["a", "b"], 1)).await;
    let then = release(&store, passing_on(&["a", "b"], ListenerPolicy::Respect).0).await.then.unwrap();
    assert_eq!(then.tokens.len(), 2);
    for (then, before) in then.tokens.iter().zip(&before.tokens) {
        assert!(then.first > before.last);
    }
    for name in ["a", "b"] {
        assert_held_by(&store, name, 2).await;
        force_release(&store, name).await;
    }
}

pub async fn takeover_is_stopped_by_a_listener_on_one_of_two_keys(Subject { store, other, .. }: Subject) {
    let mut waiter = watch(&other, &["b"]).await;
    grant(&store, request(&["a", "b"], 1)).await;
    let released = release(&store, passing_on(&["a", "b"], ListenerPolicy::Respect).0).await;
    assert_eq!((released.held, released.then), (vec![true, true].into(), None));
    assert_free(&store, "a").await;
    assert_free(&store, "b").await;
    assert_hears(&mut waiter).await;
}

pub async fn takeover_needs_a_release_that_freed_something(Subject { store, .. }: Subject) {
    let released = release(&store, passing_on(&["a"], ListenerPolicy::Ignore).0).await;
    assert_eq!((released.held, released.then), (vec![false].into(), None));
    assert_free(&store, "a").await;
    assert_eq!(status(&store, "a").await.last_token, None);

    grant(&store, request(&["a"], 3)).await;
    let released = release(&store, passing_on(&["a"], ListenerPolicy::Ignore).0).await;
    assert_eq!((released.held, released.then), (vec![false].into(), None));
    assert_held_by(&store, "a", 3).await;
}

pub async fn takeover_needs_a_release_that_freed_every_item(Subject { store, .. }: Subject) {
    grant(&store, request(&["a"], 1)).await;
    let released = release(&store, passing_on(&["a", "b"], ListenerPolicy::Ignore).0).await;
    assert_eq!((released.held, released.then), (vec![true, false].into(), None));
    assert_free(&store, "a").await;
    assert_free(&store, "b").await;
}

pub async fn takeover_does_not_follow_a_lingering_release(Subject { store, .. }: Subject) {
    grant(&store, request(&["a"], 1)).await;
    let (request, _) = passing_on(&["a"], ListenerPolicy::Ignore);
    let released = release(&store, ReleaseRequest { linger: long() / 2, ..request }).await;
    assert_eq!((released.held, released.then), (vec![true].into(), None));
    assert_held_by(&store, "a", 1).await;
    assert_remaining(&store, "a", long() / 2).await;
}

pub async fn takeover_is_stamped_like_any_acquire(Subject { store, .. }: Subject) {
    let granted = grant(&store, request(&["a"], 1)).await;
    let (request, then) = passing_on(&["a"], ListenerPolicy::Respect);
    assert_eq!(then.latest(), None);
    assert!(release(&store, request).await.then.is_some());
    let latest = then.latest().expect("it was stamped");
    assert!(!has_counters() || Moment::from(latest) > granted.moment);
}

pub async fn takeover_can_be_withdrawn(Subject { store, .. }: Subject) {
    let names = together(&["a", "b"]);
    grant(&store, request(names, 1)).await;
    let (request, then) = passing_on(names, ListenerPolicy::Respect);
    assert!(release(&store, request).await.then.is_some());
    withdraw(&store, &then).await;
    for name in names {
        assert_free(&store, name).await;
    }
}
