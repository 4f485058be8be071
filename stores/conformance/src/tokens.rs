//! Fencing tokens.

use lock_core::store::{MAX_TOKENS, TokenRange};

use super::*;

/// Acquires one key and returns its tokens.
async fn tokens(store: &Arc<dyn LockStore>, request: AcquireRequest) -> TokenRange {
    let granted = grant(store, request).await;
    assert_eq!(granted.tokens.len(), 1);
    granted.tokens[0]
}

pub async fn tokens_grow_across_grants_releases_and_expiry(Subject { store, other, .. }: Subject) {
    let mut last = 0;
    for round in 0..5 {
        let store = if round % 2 == 0 { &store } else { &other };
        let released = tokens(store, request(&["a"], 1)).await;
        assert!(released.first > last);
        release(store, giving_back(items(&["a"], 1))).await;

        let forced = tokens(store, request(&["a"], 2)).await;
        assert!(forced.first > released.last);
        force_release(store, "a").await;

        let withdrawn = Arc::new(request(&["a"], 3));
        let granted = grant(store, Arc::clone(&withdrawn)).await;
        assert!(granted.tokens[0].first > forced.last);
        withdraw(store, &withdrawn).await;

        let expired = tokens(store, leased(&["a"], 4, short())).await;
        assert!(expired.first > granted.tokens[0].last);
        last = expired.last;
        rest(short_is_over()).await;
    }
}

pub async fn tokens_of_a_fresh_key_start_at_the_stores_clock(Subject { store, .. }: Subject) {
    let granted = grant(&store, request(&["a"], 1).tokens(7)).await;
    let range = granted.tokens[0];
    let slack = u64::try_from(PATIENCE.as_micros()).unwrap();
    assert!(range.first.abs_diff(granted.moment.get()) < slack, "{granted:?}");
    assert!(range.last < 1 << 53, "{granted:?}");
}

pub async fn range_of_tokens_belongs_to_one_grant(Subject { store, .. }: Subject) {
    let range = tokens(&store, request(&["a"], 1).tokens(1000)).await;
    assert_eq!(range.last - range.first + 1, tokens_of(1000));
    assert_last_token(&status(&store, "a").await, range.last);
    release(&store, giving_back(items(&["a"], 1))).await;
    let next = tokens(&store, request(&["a"], 2)).await;
    assert_eq!(next.first, next.last);
    assert!(next.first > range.last, "tokens that were not used are not granted again");
}

pub async fn the_largest_range_is_granted(Subject { store, .. }: Subject) {
    let range = tokens(&store, request(&["a"], 1).tokens(MAX_TOKENS)).await;
    assert_eq!(range.last - range.first + 1, tokens_of(MAX_TOKENS));
    // The counter is ahead of the clock now, and continues from its value.
    let next = tokens(&store, request(&["a"], 1).tokens(MAX_TOKENS)).await;
    assert!(next.first > range.last);
    assert_eq!(next.last - next.first + 1, tokens_of(MAX_TOKENS));
}

pub async fn each_item_has_its_own_range(Subject { store, .. }: Subject) {
    let floor = if store.member().is_some() { 1 << 52 } else { 0 };
    let ahead = tokens(&store, request(&["b"], 1).tokens(MAX_TOKENS).above(floor)).await;
    let granted = grant(&store, request(&["a", "b"], 1).tokens(10)).await;
    assert_eq!(granted.tokens.len(), 2);
    let (a, b) = (granted.tokens[0], granted.tokens[1]);
    assert_eq!((a.last - a.first + 1, b.last - b.first + 1), (tokens_of(10), tokens_of(10)));
    assert!(a.last < 1 << 52, "{granted:?}");
    assert!(b.first > ahead.last, "{granted:?}");
    assert_eq!(status(&store, "a").await.last_token.unwrap().get(), a.last);
    assert_eq!(status(&store, "b").await.last_token.unwrap().get(), b.last);
}

pub async fn resent_acquire_gets_new_tokens(Subject { store, .. }: Subject) {
    let sent = Arc::new(request(together(&["a", "b"]), 1).tokens(3));
    let first = grant(&store, Arc::clone(&sent)).await;
    let second = grant(&store, sent).await;
    for (first, second) in first.tokens.iter().zip(&second.tokens) {
        assert!(second.first > first.last);
        assert_eq!(second.last - second.first + 1, tokens_of(3));
    }
}

pub async fn a_busy_answer_uses_no_tokens(Subject { store, .. }: Subject) {
    let range = tokens(&store, request(&["a"], 1)).await;
    for _ in 0..3 {
        busy(&store, request(&["a"], 2).tokens(50)).await;
    }
    assert_eq!(status(&store, "a").await.last_token.unwrap().get(), range.last);
}

pub async fn token_floor_is_respected(Subject { store, .. }: Subject) {
    let before = tokens(&store, request(&["a"], 1)).await;
    let floor = before.last + 3_600_000_000;
    let lifted = tokens(&store, request(&["a"], 1).tokens(5).above(floor)).await;
    assert!(lifted.first > floor, "{lifted:?}");
    assert_eq!(lifted.last - lifted.first + 1, tokens_of(5));
    release(&store, giving_back(items(&["a"], 1))).await;
    let after = tokens(&store, request(&["a"], 2)).await;
    assert!(after.first > lifted.last, "the floor has become the counter");

    let both = grant(&store, request(together(&["b", "c"]), 1).above(floor)).await;
    assert!(both.tokens.iter().all(|range| range.first > floor), "{both:?}");
}

pub async fn a_floor_below_the_counter_changes_nothing(Subject { store, .. }: Subject) {
    let before = tokens(&store, request(&["a"], 1)).await;
    for floor in [0, 1, before.first - 1, before.last] {
        let next = tokens(&store, request(&["a"], 1).above(floor)).await;
        assert!(next.first > before.last, "{next:?} with floor {floor}");
        assert!(next.last - before.last < 3_600_000_000, "{next:?} with floor {floor}");
    }
}

pub async fn a_counter_that_cannot_grow_is_an_error_and_takes_nothing(Subject { store, .. }: Subject) {
    let names = together(&["a", "b"]);
    for floor in [i64::MAX.unsigned_abs(), u64::MAX] {
        let wish = request(names, 1).above(floor);
        let error = store.acquire(Arc::new(wish)).await.unwrap_err();
        assert!(!error.is_transient(), "{error:?}");
        for name in names {
            assert_free(&store, name).await;
            assert_eq!(status(&store, name).await.last_token, None);
        }
    }
    grant(&store, request(names, 1)).await;
}
