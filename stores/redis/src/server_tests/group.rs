//! Requests that are ready together travel together, and each still gets its own answer.

use lock_core::store::{BoxFuture, Kind, ListenerPolicy, StoreErrorKind, Takeover, Withdrawn};

use super::*;

/// Returns the number of script calls that the server has executed so far.
async fn calls(server: &RedisServer) -> u64 {
    server.calls("evalsha").await
}

/// Returns a store with a connection and known scripts, and the number of calls that took.
async fn warm(server: &RedisServer) -> (RedisStore, u64) {
    let store = store(server);
    let mine = [item("warm")];
    granted(&store, &mine).await;
    release(&store, &mine).await.unwrap();
    let calls = calls(server).await;
    (store, calls)
}

fn items(count: usize) -> Vec<[Item; 1]> {
    (0..count).map(|i| [item(&format!("k{i}"))]).collect()
}

/// Returns the calls' results. Each call is polled once before any is polled again.
async fn together<T: Send + 'static>(calls: impl IntoIterator<Item = BoxFuture<T>>) -> Vec<T> {
    let tasks: Vec<_> = calls.into_iter().map(tokio::spawn).collect();
    let mut results = Vec::new();
    for task in tasks {
        results.push(task.await.unwrap());
    }
    results
}

async fn acquire_all(store: &RedisStore, items: &[[Item; 1]]) -> Vec<Result<Acquired, StoreError>> {
    together(items.iter().map(|item| store.acquire(Arc::new(request(item))))).await
}

async fn release_all(store: &RedisStore, items: &[[Item; 1]]) -> Vec<Result<Released, StoreError>> {
    together(items.iter().map(|item| store.release(Arc::new(release_request(item))))).await
}

/// Releases with a takeover, if nobody else listens.
fn take_over(
    store: &RedisStore,
    mine: &[Item],
    next: &Arc<AcquireRequest>,
) -> BoxFuture<Result<Released, StoreError>> {
    let then = Takeover { request: Arc::clone(next), listeners: ListenerPolicy::Respect };
    store.release(Arc::new(ReleaseRequest { then: Some(then), ..release_request(mine) }))
}

/// Polls each call once.
async fn begin<T>(calls: &mut [BoxFuture<T>]) {
    for call in calls {
        std::future::poll_fn(|cx| {
            assert!(call.as_mut().poll(cx).is_pending());
            std::task::Poll::Ready(())
        })
        .await;
    }
}

#[tokio::test]
async fn what_is_ready_together_is_one_call_and_the_first_waits_for_nobody() {
    let server = RedisServer::start();
    let (store, before) = warm(&server).await;
    let items = items(15);
    for acquired in acquire_all(&store, &items).await {
        assert!(matches!(acquired.unwrap(), Acquired::Granted(_)));
    }
    assert_eq!(calls(&server).await - before, 2, "one alone, the others together");
    for released in release_all(&store, &items).await {
        assert_eq!(released.unwrap().held, [true]);
    }
    assert_eq!(calls(&server).await - before, 4);
    assert!(!server.keys().await.iter().any(|key| key.starts_with("lock:")));
}

#[tokio::test]
async fn withdrawals_that_come_together_are_one_call() {
    let server = RedisServer::start();
    let (store, _) = warm(&server).await;
    let kinds = [Kind::Mutex, Kind::Fair, Kind::Read, Kind::Write];
    let item = |i: usize| item_of(kinds[i % kinds.len()], &format!("k{i}"));
    let requests: Vec<_> = (0..16).map(|i| Arc::new(request(&[item(i)]))).collect();
    for acquired in together(requests.iter().map(|request| store.acquire(Arc::clone(request)))).await {
        assert!(matches!(acquired.unwrap(), Acquired::Granted(_)));
    }
    let before = calls(&server).await;
    for withdrawn in together(requests.iter().map(|request| store.withdraw(Arc::clone(request)))).await {
        assert!(matches!(withdrawn.unwrap(), Withdrawn::Pending(_)), "a copy of it may still come");
    }
    assert_eq!(calls(&server).await - before, 2, "one alone, the others together");
    assert!(!server.keys().await.iter().any(|key| key.starts_with("lock:")));
}

#[tokio::test]
async fn a_call_is_never_longer_than_it_may_be() {
    let server = RedisServer::start();
    let (store, before) = warm(&server).await;
    let items = items(1 + 16 + 16 + 1);
    for acquired in acquire_all(&store, &items).await {
        assert!(matches!(acquired.unwrap(), Acquired::Granted(_)));
    }
    assert_eq!(calls(&server).await - before, 4);
}

#[tokio::test]
async fn each_member_gets_its_own_answer() {
    let server = RedisServer::start();
    let (store, before) = warm(&server).await;
    let theirs = [item("busy")];
    granted(&store, &theirs).await;
    let _: () = server.ask(&["SET", "lock:text", "x"]).await;
    let _: () = server.ask(&["HSET", "lock:mine", "f", "x"]).await;
    let _: () = server.ask(&["SET", "redisson_lock_token:{lock:bad}", "abc"]).await;
    let _: () = server.ask(&["RPUSH", "redisson_lock_token:{lock:list}", "x"]).await;
    let _: () = server.ask(&["SET", "redisson_lock_token:{lock:full}", "9223372036854775807"]).await;
    let _: () = server.ask(&["SET", "redisson_lock_token:{lock:ahead}", "9007199254740993"]).await;
    let names = ["first", "a", "busy", "text", "mine", "bad", "list", "full", "ahead", "b"];
    let items: Vec<[Item; 1]> = names.iter().map(|name| [item(name)]).collect();
    for (name, acquired) in names.iter().zip(acquire_all(&store, &items).await) {
        match (*name, acquired) {
            ("first" | "a" | "b", Ok(Acquired::Granted(_))) => {}
            ("ahead", Ok(Acquired::Granted(granted))) => {
                assert_eq!(granted.tokens[0].last, 9_007_199_254_740_994);
            }
            ("busy", Ok(Acquired::Busy(busy))) => {
                assert!(busy.item == 0 && busy.remaining.unwrap() <= LEASE, "{busy:?}");
            }
            ("text" | "mine" | "bad" | "list" | "full", Err(error)) => {
                assert_eq!(error.kind(), StoreErrorKind::ForeignData, "{name}: {error}");
                assert!(error.to_string().contains(&format!("lock:{name}")), "{name}: {error}");
            }
            (name, acquired) => panic!("{name}: {acquired:?}"),
        }
    }
    // One call for the holder, one alone, one for all others.
    assert_eq!(calls(&server).await - before, 3);
    let text: String = server.ask(&["GET", "redisson_lock_token:{lock:bad}"]).await;
    assert_eq!(text, "abc", "put back");

    let held = ["first", "a", "ahead", "b"];
    for (name, released) in names.iter().zip(release_all(&store, &items).await) {
        assert_eq!(released.unwrap().held, [held.contains(name)], "{name}");
    }
    assert_eq!(release(&store, &theirs).await.unwrap().held, [true], "the others still hold it");
}

#[tokio::test]
async fn holds_that_are_taken_over_together_get_each_their_own_answer() {
    let server = RedisServer::start();
    let (store, before) = warm(&server).await;
    let names = ["first", "a", "listened", "ignored", "shared", "bad", "ahead", "lost", "b"];
    let held: Vec<[Item; 1]> = names.iter().map(|name| [item(name)]).collect();
    for acquired in acquire_all(&store, &held).await {
        assert!(matches!(acquired.unwrap(), Acquired::Granted(_)));
    }
    let _: () = server.ask(&["HSET", "lock:shared", "somebody:1", "1"]).await;
    let _: () = server.ask(&["SET", "redisson_lock_token:{lock:bad}", "abc"]).await;
    let _: () = server.ask(&["SET", "redisson_lock_token:{lock:ahead}", "9007199254740993"]).await;
    let _: () = server.ask(&["DEL", "lock:lost"]).await;
    let other = super::store(&server);
    let _watch = other.watch(Arc::new(request(&[item("listened")]))).await.unwrap();
    let _another = other.watch(Arc::new(request(&[item("ignored")]))).await.unwrap();
    let before = before + 2;
    assert_eq!(calls(&server).await, before);

    let next: Vec<[Item; 1]> = names.iter().map(|name| [item(name)]).collect();
    let releases = held.iter().zip(&next).zip(1..).map(|((mine, next), tokens)| {
        let ignored = next[0].key.as_str() == "ignored";
        let listeners = if ignored { ListenerPolicy::Ignore } else { ListenerPolicy::Respect };
        let then = Takeover { request: Arc::new(request(next).tokens(tokens)), listeners };
        store.release(Arc::new(ReleaseRequest { then: Some(then), ..release_request(mine) }))
    });
    for (index, released) in together(releases).await.into_iter().enumerate() {
        let (name, released) = (names[index], released.unwrap());
        assert_eq!(released.held, [name != "lost"], "{name}");
        let listened = ["listened", "ignored"].contains(&name);
        assert_eq!(released.rivals, Rivals::counted(u64::from(listened)), "{name}");
        let taken = ["first", "a", "ignored", "ahead", "b"].contains(&name);
        let tokens = released.then.map(|then| then.tokens[0]);
        assert_eq!(tokens.map(|range| range.last - range.first), taken.then_some(index as u64), "{name}");
        let holder: Vec<String> = server.ask(&["HKEYS", &format!("lock:{name}")]).await;
        match name {
            "shared" => assert_eq!(holder, ["somebody:1"]),
            _ if taken => {
                assert_eq!(holder, [next[index][0].owner.as_str()], "{name}");
                let left: i64 = server.ask(&["PTTL", &format!("lock:{name}")]).await;
                assert!(left > 0, "{name}");
            }
            _ => assert!(holder.is_empty(), "{name}: {holder:?}"),
        }
    }
    assert_eq!(calls(&server).await - before, 2, "one alone, the others together");
    let text: String = server.ask(&["GET", "redisson_lock_token:{lock:bad}"]).await;
    assert_eq!(text, "abc", "put back");
}

#[tokio::test]
async fn missing_rights_of_one_member_do_not_affect_the_others() {
    let server = RedisServer::start();
    let _: () = server
        .ask(&[
            "ACL",
            "SETUSER",
            "ann",
            "on",
            ">hunter2",
            "~lock:k*",
            "~redisson_lock_token:*",
            "&*",
            "+@all",
        ])
        .await;
    let store = RedisStore::new(&server.client_as("ann", "hunter2"), options()).unwrap();
    let names = ["k0", "k1", "other", "k2"];
    let items: Vec<[Item; 1]> = names.iter().map(|name| [item(name)]).collect();
    for (name, acquired) in names.iter().zip(acquire_all(&store, &items).await) {
        match acquired {
            Ok(Acquired::Granted(_)) => assert_ne!(*name, "other"),
            Err(error) => assert_eq!((*name, error.kind()), ("other", StoreErrorKind::Denied), "{error}"),
            Ok(Acquired::Busy(busy)) => panic!("{busy:?}"),
        }
    }
    let next: Vec<[Item; 1]> = names.iter().map(|name| [item(name)]).collect();
    let releases =
        items.iter().zip(&next).map(|(mine, next)| take_over(&store, mine, &Arc::new(request(next))));
    for (name, released) in names.iter().zip(together(releases).await) {
        match released {
            Ok(released) => {
                assert_ne!(*name, "other");
                assert!(released.held == [true] && released.then.is_some(), "{name}: {released:?}");
            }
            Err(error) => assert_eq!((*name, error.kind()), ("other", StoreErrorKind::Denied), "{error}"),
        }
    }
}

#[tokio::test]
async fn a_takeover_that_was_withdrawn_before_it_was_sent_still_releases() {
    let server = RedisServer::start();
    let (store, _) = warm(&server).await;
    let (held, next) = (items(4), items(4));
    for acquired in acquire_all(&store, &held).await {
        assert!(matches!(acquired.unwrap(), Acquired::Granted(_)));
    }
    let requests: Vec<_> = next.iter().map(|next| Arc::new(request(next))).collect();
    let mut calls: Vec<_> =
        held.iter().zip(&requests).map(|(mine, next)| take_over(&store, mine, next)).collect();
    begin(&mut calls).await;
    let withdrawn = store.withdraw(Arc::clone(&requests[2])).await.unwrap();
    assert_eq!(withdrawn, lock_core::store::Withdrawn::Settled);
    for (index, call) in calls.into_iter().enumerate() {
        let released = call.await.unwrap();
        assert_eq!((&*released.held, released.then.is_some()), (&[true][..], index != 2), "{index}");
    }
    assert!(!server.keys().await.contains(&"lock:k2".to_owned()));
}

#[tokio::test]
async fn late_members_take_nothing_and_are_asked_again_with_the_new_time() {
    let server = RedisServer::start();
    let (store, before) = warm(&server).await;
    let clock = &store.node().server_clock;
    // A stepped clock: every estimate is far in the past until an answer corrects it.
    clock.pretend(ServerTime::from_micros(1), Tick::from_nanos(1));
    for acquired in acquire_all(&store, &items(5)).await {
        assert!(matches!(acquired.unwrap(), Acquired::Granted(_)));
    }
    assert_eq!(calls(&server).await - before, 4, "both calls twice");

    clock.pretend(ServerTime::from_micros(1), Clock::Boot.now() + Duration::from_secs(3600));
    let items: Vec<[Item; 1]> = (0..5).map(|i| [item(&format!("late{i}"))]).collect();
    for acquired in acquire_all(&store, &items).await {
        assert_eq!(acquired.unwrap_err().kind(), StoreErrorKind::TooLate);
    }
    assert!(!server.keys().await.iter().any(|key| key.starts_with("lock:late")));
}

#[tokio::test]
async fn whoever_goes_before_the_call_is_sent_is_not_in_it() {
    let server = RedisServer::start();
    let (store, _) = warm(&server).await;
    let items = items(4);
    let requests: Vec<_> = items.iter().map(|item| Arc::new(request(item))).collect();
    let mut calls: Vec<_> = requests.iter().map(|request| store.acquire(Arc::clone(request))).collect();
    begin(&mut calls).await;
    // The second call has promised to send the others.
    drop(calls.remove(1));
    for call in calls {
        assert!(matches!(call.await.unwrap(), Acquired::Granted(_)));
    }
    assert_eq!(requests[1].latest(), None, "never sent, so there is nothing to withdraw");
    assert!(!server.keys().await.contains(&"lock:k1".to_owned()));
    granted(&store, &items[1]).await;
}

#[tokio::test]
async fn a_call_that_is_not_answered_is_unanswered_for_every_member() {
    let mut server = RedisServer::start();
    let (store, _) = warm(&server).await;
    server.stop();
    let items = items(5);
    let requests: Vec<_> = items
        .iter()
        .map(|item| Arc::new(AcquireRequest::new(item.to_vec(), LEASE, Duration::from_millis(300))))
        .collect();
    let acquired = together(requests.iter().map(|request| store.acquire(Arc::clone(request)))).await;
    for (request, acquired) in requests.iter().zip(acquired) {
        assert_eq!(acquired.unwrap_err().kind(), StoreErrorKind::Unanswered);
        assert!(request.latest().is_some(), "it has to be withdrawn");
    }
    server.cont();
    for request in requests {
        while store.withdraw(Arc::clone(&request)).await.unwrap() != lock_core::store::Withdrawn::Settled {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
    for acquired in acquire_all(&store, &items).await {
        assert!(matches!(acquired.unwrap(), Acquired::Granted(_)));
    }
}

#[tokio::test]
async fn members_are_told_when_the_runtime_that_sends_goes() {
    let mut server = RedisServer::start();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let store = store_with(&server, |options| options.runtime = runtime.handle().clone());
    granted(&store, &[item("warm")]).await;
    server.stop();
    let items = items(3);
    let mut calls: Vec<_> = items.iter().map(|item| store.acquire(Arc::new(request(item)))).collect();
    begin(&mut calls).await;
    runtime.shutdown_background();
    for call in calls {
        let error = call.await.unwrap_err();
        assert!(error.is_transient(), "{error}");
    }
    server.cont();
}

#[tokio::test]
async fn a_key_that_two_members_want_is_taken_by_one() {
    let server = RedisServer::start();
    let (store, _) = warm(&server).await;
    let acquired = acquire_all(&store, &[[item("first")], [item("k")], [item("k")]]).await;
    let granted = |acquired: &Result<Acquired, StoreError>| matches!(acquired, Ok(Acquired::Granted(_)));
    assert_eq!(acquired[1..].iter().filter(|acquired| granted(acquired)).count(), 1, "{acquired:?}");
}

/// The engine drives an overdue call to its end, and withdraws it.
#[tokio::test]
async fn a_member_that_was_withdrawn_before_it_was_sent_takes_nothing() {
    for late in [true, false] {
        let server = RedisServer::start();
        let (store, _) = warm(&server).await;
        let items = items(3);
        let timeout = if late { Duration::from_millis(100) } else { TIMEOUT };
        let requests: Vec<_> =
            items.iter().map(|item| Arc::new(AcquireRequest::new(item.to_vec(), LEASE, timeout))).collect();
        let mut calls: Vec<_> = requests.iter().map(|request| store.acquire(Arc::clone(request))).collect();
        begin(&mut calls).await;
        if late {
            // Simulates that the process was stopped.
            std::thread::sleep(timeout * 3);
        }
        let withdrawn = store.withdraw(Arc::clone(&requests[1])).await.unwrap();
        assert_eq!(withdrawn, lock_core::store::Withdrawn::Settled);
        let last = calls.pop().unwrap().await;
        let error = calls.pop().unwrap().await.unwrap_err();
        assert!(error.is_transient(), "{error}");
        assert!(!server.keys().await.contains(&"lock:k1".to_owned()));
        // The others succeed, unless they are overdue as well.
        assert_eq!(matches!(last, Ok(Acquired::Granted(_))), !late, "{last:?}");
    }
}

/// A server in cluster mode that has all slots.
#[tokio::test]
async fn a_server_that_looks_at_slots_gets_each_alone() {
    let server = RedisServer::start_with(&["--cluster-enabled", "yes"]);
    server.take_all_slots().await;
    let store = store(&server);
    let items = items(6);
    for _ in 0..2 {
        for acquired in acquire_all(&store, &items).await {
            assert!(matches!(acquired.unwrap(), Acquired::Granted(_)));
        }
        for released in release_all(&store, &items).await {
            assert_eq!(released.unwrap().held, [true]);
        }
    }
}
