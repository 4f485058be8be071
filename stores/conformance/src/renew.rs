//! Renewals.

use super::*;

pub async fn renew_lengthens(Subject { store, other, .. }: Subject) {
    grant(&store, request(&["a", "b"], 1)).await;
    assert_eq!(renew(&store, items(&["a", "b"], 1), 3 * LONG).await, [Renewed::Held, Renewed::Held]);
    assert_remaining(&store, "a", 3 * LONG).await;
    assert_remaining(&other, "b", 3 * LONG).await;
}

pub async fn renew_never_shortens(Subject { store, .. }: Subject) {
    grant(&store, leased(&["a"], 1, 3 * LONG)).await;
    for lease in [LONG, SHORT] {
        assert_eq!(renew(&store, items(&["a"], 1), lease).await, [Renewed::Held]);
        assert_remaining(&store, "a", 3 * LONG).await;
    }
}

pub async fn renew_lets_the_counter_outlive_the_hold(Subject { store, .. }: Subject) {
    let (lease, retention) = (INTENT_LIFE, TokenRetention::For(SHORT));
    let kinds = [Kind::Mutex, Kind::Fair, Kind::Read, Kind::Write];
    let items: Few<Item> = kinds.map(|kind| item_of(kind, &format!("{kind:?}"), 1)).into_iter().collect();
    let request = AcquireRequest::new(items.clone(), lease, PATIENCE).retention(retention);
    let granted = grant(&store, request).await;
    let keep = items.iter().map(|item| RenewItem::hold(item.clone(), LONG).retention(retention)).collect();
    let kept = store.renew(Arc::new(RenewRequest { items: keep, timeout: PATIENCE })).await.unwrap();
    assert_eq!(kept, [Renewed::Held; 4]);
    // The lifetime that the grant alone has given the counters is over.
    rest(lease + 2 * SHORT).await;
    for (item, tokens) in items.iter().zip(&granted.tokens) {
        let last = status(&store, item.key.as_str()).await.last_token;
        assert_eq!(last.map(u64::from), Some(tokens.last), "{item:?}");
    }
}

pub async fn renew_treats_each_item_on_its_own(Subject { store, .. }: Subject) {
    grant(&store, request(&["a", "d"], 1)).await;
    grant(&store, request(&["c"], 2)).await;
    let kept = renew(&store, items(&["a", "b", "c", "d"], 1), 3 * LONG).await;
    assert_eq!(kept, [Renewed::Held, Renewed::Gone, Renewed::Gone, Renewed::Held]);
    assert_remaining(&store, "a", 3 * LONG).await;
    assert_free(&store, "b").await;
    assert_held_by(&store, "c", 2).await;
    assert_remaining(&store, "c", LONG).await;
    assert_remaining(&store, "d", 3 * LONG).await;

    // Each item has its own lease.
    let items = vec![
        RenewItem::hold(item("a", 1), 5 * LONG),
        RenewItem::hold(item("d", 1), 7 * LONG),
        RenewItem::hold(item("c", 2), SHORT),
    ];
    let kept = store.renew(Arc::new(RenewRequest { items, timeout: PATIENCE })).await.unwrap();
    assert_eq!(kept, [Renewed::Held; 3]);
    assert_remaining(&store, "a", 5 * LONG).await;
    assert_remaining(&store, "d", 7 * LONG).await;
    assert_remaining(&store, "c", LONG).await;
}

pub async fn renew_does_not_revive(Subject { store, .. }: Subject) {
    grant(&store, leased(&["a"], 1, SHORT)).await;
    grant(&store, request(&["b"], 1)).await;
    rest(SHORT_IS_OVER).await;
    release(&store, giving_back(items(&["b"], 1))).await;
    assert_eq!(renew(&store, items(&["a", "b"], 1), LONG).await, [Renewed::Gone, Renewed::Gone]);
    assert_free(&store, "a").await;
    assert_free(&store, "b").await;
}

pub async fn renew_by_a_stranger_touches_nothing(Subject { store, other, .. }: Subject) {
    grant(&store, request(&["a"], 1)).await;
    assert_eq!(renew(&other, items(&["a"], 2), 3 * LONG).await, [Renewed::Gone]);
    assert_held_by(&store, "a", 1).await;
    assert_remaining(&store, "a", LONG).await;
}
