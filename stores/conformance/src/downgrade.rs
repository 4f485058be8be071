//! Downgrades from writing to reading.

use super::*;

fn writing(name: &str, number: u32) -> Item {
    item_of(Kind::Write, name, number)
}

pub async fn a_writer_becomes_a_reader(Subject { store, other, .. }: Subject) {
    let before = grant(&store, wish(Kind::Write, "a", 1)).await;
    assert_eq!(downgrade(&store, vec![writing("a", 1)], long()).await, [Renewed::Held]);
    assert_kind(&other, "a", Kind::Read, &[1]).await;
    assert_remaining(&other, "a", long()).await;
    assert_last_token(&status(&other, "a").await, before.tokens[0].last);
    let granted = grant(&other, wish(Kind::Read, "a", 2)).await;
    assert!(granted.tokens[0].first > before.tokens[0].last);
    busy(&other, wish(Kind::Write, "a", 3)).await;
    assert_kind(&other, "a", Kind::Read, &[1, 2]).await;
}

pub async fn waiting_readers_hear_of_it(Subject { store, other, .. }: Subject) {
    grant(&store, wish(Kind::Write, "a", 1)).await;
    let request = Arc::new(waiting(Kind::Read, "a", 2));
    let mut reader = wait_in_line(&other, &request).await;
    downgrade(&store, vec![writing("a", 1)], long()).await;
    if abilities(|store| store.direct_grants && store.queues(Kind::Read)) {
        assert_hears_grant(&mut reader).await;
    } else {
        assert_hears(&mut reader).await;
    }
    grant(&other, request).await;
}

pub async fn it_lengthens_and_never_shortens(Subject { store, .. }: Subject) {
    grant(&store, wish(Kind::Write, "a", 1)).await;
    downgrade(&store, vec![writing("a", 1)], 3 * long()).await;
    assert!(remaining(&store, "a").await > long());
    assert_remaining(&store, "a", 3 * long()).await;

    grant(&store, wish(Kind::Write, "b", 1)).await;
    downgrade(&store, vec![writing("b", 1)], short()).await;
    assert_remaining(&store, "b", long()).await;
    rest(short_is_over()).await;
    assert_kind(&store, "b", Kind::Read, &[1]).await;
}

pub async fn who_reads_already_is_renewed(Subject { store, .. }: Subject) {
    grant(&store, wish(Kind::Write, "a", 1)).await;
    // The answer to the downgrade may have been lost.
    for lease in [long(), 2 * long(), short()] {
        assert_eq!(downgrade(&store, vec![writing("a", 1)], lease).await, [Renewed::Held]);
    }
    assert_kind(&store, "a", Kind::Read, &[1]).await;
    assert_remaining(&store, "a", 2 * long()).await;
    give_back(&store, &wish(Kind::Read, "a", 1)).await;
    assert_free(&store, "a").await;
}

pub async fn who_holds_nothing_is_told(Subject { store, .. }: Subject) {
    assert_eq!(downgrade(&store, vec![writing("a", 1)], long()).await, [Renewed::Gone]);
    assert_free(&store, "a").await;
    grant(&store, wish(Kind::Write, "a", 1)).await;
    assert_eq!(downgrade(&store, vec![writing("a", 2)], 2 * long()).await, [Renewed::Gone]);
    assert_kind(&store, "a", Kind::Write, &[1]).await;
    assert_remaining(&store, "a", long()).await;
    grant(&store, AcquireRequest::new(vec![writing("b", 1)], short(), PATIENCE)).await;
    rest(short_is_over()).await;
    assert_eq!(downgrade(&store, vec![writing("b", 1)], long()).await, [Renewed::Gone]);
    assert_free(&store, "b").await;
}

pub async fn each_item_is_on_its_own(Subject { store, .. }: Subject) {
    for name in ["a", "c"] {
        grant(&store, wish(Kind::Write, name, 1)).await;
    }
    let items = vec![writing("a", 1), writing("b", 1), writing("c", 1)];
    let answers = downgrade(&store, items, 2 * long()).await;
    assert_eq!(answers, [Renewed::Held, Renewed::Gone, Renewed::Held]);
    for name in ["a", "c"] {
        assert_kind(&store, name, Kind::Read, &[1]).await;
        assert_remaining(&store, name, 2 * long()).await;
    }
}

pub async fn a_downgraded_hold_is_given_back_like_any(Subject { store, other, .. }: Subject) {
    let request = Arc::new(wish(Kind::Write, "a", 1));
    let mut writer = watch_for(&other, &Arc::new(waiting(Kind::Write, "a", 2))).await;
    for round in 0..2 {
        grant(&store, Arc::clone(&request)).await;
        downgrade(&store, request.items.clone(), long()).await;
        drain(&mut writer).await;
        match round {
            0 => drop(give_back(&store, &request).await),
            _ => drop(withdraw(&store, &request).await),
        }
        // In a queue, it would hear of its own turn only.
        if abilities(|store| !store.queues(Kind::Write)) {
            assert_hears(&mut writer).await;
        }
        assert_free(&store, "a").await;
    }
}

pub async fn withdraw_of_the_writer_gives_back_the_reader(Subject { store, .. }: Subject) {
    let request = Arc::new(wish(Kind::Write, "a", 1));
    grant(&store, Arc::clone(&request)).await;
    downgrade(&store, request.items.clone(), long()).await;
    assert_kind(&store, "a", Kind::Read, &[1]).await;
    withdraw(&store, &request).await;
    assert_free(&store, "a").await;
}
