//! Renewals.

use super::*;

pub async fn renew_lengthens(Subject { store, other, .. }: Subject) {
    grant_each(&store, &["a", "b"], 1, long()).await;
    assert_eq!(renew(&store, items(&["a", "b"], 1), 3 * long()).await, [Renewed::Held, Renewed::Held]);
    assert_remaining(&store, "a", 3 * long()).await;
    assert_remaining(&other, "b", 3 * long()).await;
}

pub async fn a_renewed_lease_lasts(subject: Subject) {
    for mut lease in [2 * short(), (2 * short()).max(Duration::from_millis(1900))].map(allowed) {
        loop {
            let (first, began) = (allowed(lease / 2), Instant::now());
            grant(&subject.store, leased(&["a"], 1, first)).await;
            let sent = Instant::now();
            let kept = renew(&subject.store, items(&["a"], 1), lease).await;
            if began.elapsed() < first * 17 / 20 {
                assert_eq!(kept, [Renewed::Held]);
                if assert_lasts(&subject, "a", sent, lease).await {
                    break;
                }
            }
            force_release(&subject.store, "a").await;
            lease = allowed(2 * lease);
        }
    }
}

pub async fn renew_never_shortens(Subject { store, .. }: Subject) {
    grant(&store, leased(&["a"], 1, 3 * long())).await;
    for lease in [long(), short()] {
        assert_eq!(renew(&store, items(&["a"], 1), lease).await, [Renewed::Held]);
        assert_remaining(&store, "a", 3 * long()).await;
    }
}

pub async fn renew_lets_the_counter_outlive_the_hold(Subject { store, .. }: Subject) {
    let (lease, retention) = (short().max(Duration::from_secs(1)), TokenRetention::For(short()));
    let items: Vec<_> =
        kinds_of_locks().into_iter().map(|kind| item_of(kind, &format!("{kind:?}"), 1)).collect();
    let mut last = Vec::new();
    for items in items.chunks(if abilities(|store| store.several) { items.len() } else { 1 }) {
        let request = AcquireRequest::new(items.to_vec(), lease, PATIENCE).retention(retention);
        last.extend(grant(&store, request).await.tokens.iter().map(|range| range.last));
    }
    let keep = items.iter().map(|item| RenewItem::hold(item.clone(), long()).retention(retention)).collect();
    let kept = store.renew(Arc::new(RenewRequest { items: keep, timeout: PATIENCE })).await.unwrap();
    assert_eq!(kept, vec![Renewed::Held; items.len()]);
    // The lifetime that the grant alone has given the counters is over.
    rest(lease + 2 * short()).await;
    use_other_keys(&store).await;
    for (item, last) in items.iter().zip(last) {
        let known = status(&store, item.key.as_str()).await;
        assert_eq!(known.holders, [(owner(1), 1)], "the renewed hold of {item:?} was forgotten");
        assert_eq!(known.last_token.map(u64::from), Some(last), "the counter of {item:?} was forgotten");
    }
}

pub async fn renew_treats_each_item_on_its_own(Subject { store, .. }: Subject) {
    grant_each(&store, &["a", "d"], 1, long()).await;
    grant(&store, request(&["c"], 2)).await;
    let kept = renew(&store, items(&["a", "b", "c", "d"], 1), 2 * long()).await;
    assert_eq!(kept, [Renewed::Held, Renewed::Gone, Renewed::Gone, Renewed::Held]);
    assert_remaining(&store, "a", 2 * long()).await;
    assert_free(&store, "b").await;
    assert_held_by(&store, "c", 2).await;
    assert_remaining(&store, "c", long()).await;
    assert_remaining(&store, "d", 2 * long()).await;

    // Each item has its own lease.
    let items = vec![
        RenewItem::hold(item("a", 1), 5 * long() / 2),
        RenewItem::hold(item("d", 1), 3 * long()),
        RenewItem::hold(item("c", 2), short()),
    ];
    let kept = store.renew(Arc::new(RenewRequest { items, timeout: PATIENCE })).await.unwrap();
    assert_eq!(kept, [Renewed::Held; 3]);
    assert_remaining(&store, "a", 5 * long() / 2).await;
    assert_remaining(&store, "d", 3 * long()).await;
    assert_remaining(&store, "c", long()).await;
}

pub async fn renew_answers_in_the_order_of_the_request(Subject { store, .. }: Subject) {
    grant_each(&store, &["b", "c"], 1, long()).await;
    grant(&store, request(&["a"], 2)).await;
    let kept = renew(&store, items(&["c", "a", "b"], 1), long()).await;
    assert_eq!(kept, [Renewed::Held, Renewed::Gone, Renewed::Held]);
}

pub async fn renew_answers_for_300_items(Subject { store, .. }: Subject) {
    let held = [0, 15, 16, 99, 100, 255, 256, 299];
    let names: Vec<_> = (0..300).map(|index| format!("k{index}")).collect();
    let names: Vec<_> = names.iter().map(String::as_str).collect();
    grant_each(&store, &held.map(|index| names[index]), 1, long()).await;
    let kept = renew(&store, items(&names, 1), 2 * long()).await;
    let holds = |index| if held.contains(&index) { Renewed::Held } else { Renewed::Gone };
    assert_eq!(kept, (0..300).map(holds).collect::<Vec<_>>());
    assert_remaining(&store, "k299", 2 * long()).await;
}

pub async fn renew_does_not_revive(Subject { store, .. }: Subject) {
    grant(&store, leased(&["a"], 1, short())).await;
    grant(&store, request(&["b"], 1)).await;
    rest(short_is_over()).await;
    release(&store, giving_back(items(&["b"], 1))).await;
    assert_eq!(renew(&store, items(&["a", "b"], 1), long()).await, [Renewed::Gone, Renewed::Gone]);
    assert_free(&store, "a").await;
    assert_free(&store, "b").await;
}

pub async fn renew_by_a_stranger_touches_nothing(Subject { store, other, .. }: Subject) {
    grant(&store, request(&["a"], 1)).await;
    assert_eq!(renew(&other, items(&["a"], 2), 3 * long()).await, [Renewed::Gone]);
    assert_held_by(&store, "a", 1).await;
    assert_remaining(&store, "a", long()).await;
}
