//! `kind = …` and `keys = …`: what functions annotated with them exclude, and what they let in.

use std::cell::Cell;
use std::time::Duration;

use lock_runtime::{
    FencingToken, Kind, LockError, LockKey, LockManager, MultiKey, distributed_lock, testing, with_default,
};
use tokio::sync::Barrier;
use tokio::time::timeout;

/// Wait longer than anything in these tests takes: time is paused.
const LONG: Duration = Duration::from_secs(60);

mod kinds {
    use super::*;

    #[distributed_lock(key = "page:<id>", kind = read, manager = locks)]
    async fn read(locks: &LockManager, id: u64, inside: &Barrier) -> Result<(), LockError> {
        inside.wait().await;
        Ok(())
    }

    #[distributed_lock(key = "page:<id>", kind = write, manager = locks, wait = "none", guard = lock)]
    async fn write(locks: &LockManager, id: u64) -> Result<FencingToken, LockError> {
        let _ = id;
        Ok(lock.fencing_token())
    }

    #[distributed_lock(key = "page:1", kind = fair, manager = locks, wait = "none")]
    async fn fair(locks: &LockManager) -> Result<(), LockError> {
        Ok(())
    }

    #[distributed_lock(key = "page:1", kind = mutex, manager = locks, wait = "none")]
    async fn mutex(locks: &LockManager) -> Result<(), LockError> {
        Ok(())
    }

    /// Two readers are inside at once, and a writer is not inside with one.
    #[tokio::test(start_paused = true)]
    async fn readers_are_together_and_a_writer_is_alone() {
        let locks = testing::memory_manager();
        let both = Barrier::new(2);
        let (first, second) = (read(&locks, 1, &both), read(&locks, 1, &both));
        let (first, second) = timeout(LONG, async { tokio::join!(first, second) }).await.unwrap();
        first.and(second).unwrap();

        let reader = locks.read("page:1").acquire().await.unwrap();
        assert!(write(&locks, 1).await.unwrap_err().is_busy());
        write(&locks, 2).await.unwrap();
        reader.release().await.unwrap();
        write(&locks, 1).await.unwrap();
    }

    /// The store sees each call's hold as the kind that was named.
    #[tokio::test(start_paused = true)]
    async fn each_kind_excludes_the_others() {
        let locks = testing::memory_manager();
        for held in [locks.mutex("page:1"), locks.fair("page:1"), locks.write("page:1")] {
            let held = held.acquire().await.unwrap();
            assert!(mutex(&locks).await.is_err());
            assert!(fair(&locks).await.is_err());
            assert!(write(&locks, 1).await.is_err());
            held.release().await.unwrap();
        }
        mutex(&locks).await.unwrap();
        fair(&locks).await.unwrap();
        write(&locks, 1).await.unwrap();
    }

    #[distributed_lock(key = "page:1", kind = fair, manager = locks, wait = "forever")]
    async fn queued(locks: &LockManager) -> Result<(), LockError> {
        Ok(())
    }

    /// A fair call is in the store's queue while it waits.
    #[tokio::test(start_paused = true)]
    async fn a_fair_call_waits_in_the_queue_of_the_store() {
        let locks = testing::memory_manager();
        let held = locks.fair("page:1").acquire().await.unwrap();
        let call = queued(&locks);
        let in_line = async {
            while locks.status("page:1").await.unwrap().kind != Some(Kind::Fair) {
                tokio::task::yield_now().await;
            }
            held.release().await.unwrap();
        };
        let (call, ()) = timeout(LONG, async { tokio::join!(call, in_line) }).await.unwrap();
        call.unwrap();
    }

    #[distributed_lock(key = "page:1", kind = write, manager = locks, guard = lock)]
    async fn reads_inside(locks: &LockManager) -> Result<(), LockError> {
        let token = token_of_reader(locks).await?;
        assert_eq!(token, lock.fencing_token(), "the read entered the write lock");
        Ok(())
    }

    #[distributed_lock(key = "page:1", kind = read, manager = locks, wait = "none", guard = lock)]
    async fn token_of_reader(locks: &LockManager) -> Result<FencingToken, LockError> {
        Ok(lock.fencing_token())
    }

    #[distributed_lock(key = "page:1", kind = read, manager = locks)]
    async fn writes_inside(locks: &LockManager) -> Result<FencingToken, LockError> {
        write(locks, 1).await
    }

    /// A read call inside a write call enters. A write call inside a read call fails at once, and
    /// not because the lock is busy.
    #[tokio::test(start_paused = true)]
    async fn a_writer_may_read_inside_and_a_reader_may_not_write() {
        let locks = testing::memory_manager();
        reads_inside(&locks).await.unwrap();
        let error = writes_inside(&locks).await.unwrap_err();
        assert!(matches!(error, LockError::KindConflict { .. }), "{error}");
        assert!(!error.is_busy());
    }
}

mod several {
    use super::*;

    #[distributed_lock(keys = ["account:<from>", "account:<to>"], manager = locks, wait = "none", guard = lock)]
    async fn transfer(locks: &LockManager, from: u64, to: u64) -> Result<Vec<String>, LockError> {
        let _ = (from, to);
        Ok(lock.tokens().into_iter().map(|(key, _)| key.to_string()).collect())
    }

    /// Placeholders work in every text of the list. The keys are sorted, and a key that is named
    /// twice counts once.
    #[tokio::test(start_paused = true)]
    async fn the_texts_of_a_list_are_templates() {
        let locks = testing::memory_manager();
        assert_eq!(transfer(&locks, 2, 1).await.unwrap(), ["account:1", "account:2"]);
        assert_eq!(transfer(&locks, 3, 3).await.unwrap(), ["account:3"]);
    }

    /// If one key is busy, no key is taken.
    #[tokio::test(start_paused = true)]
    async fn all_keys_are_taken_or_none() {
        let locks = testing::memory_manager();
        let held = locks.mutex("account:2").acquire().await.unwrap();
        assert!(transfer(&locks, 1, 2).await.unwrap_err().is_busy());
        let other = locks.mutex("account:1").try_acquire().await.unwrap().unwrap();
        other.release().await.unwrap();
        held.release().await.unwrap();
        transfer(&locks, 1, 2).await.unwrap();
        for key in ["account:1", "account:2"] {
            assert!(locks.mutex(key).try_acquire().await.unwrap().is_some(), "{key}");
        }
    }

    #[distributed_lock(keys = ["account:<from>", "account:<to>"], manager = locks, wait = "forever")]
    async fn move_one(
        locks: &LockManager,
        from: usize,
        to: usize,
        accounts: &[Cell<i64>; 3],
    ) -> Result<(), LockError> {
        let (source, target) = (&accounts[from], &accounts[to]);
        let (had, has) = (source.get(), target.get());
        tokio::task::yield_now().await;
        source.set(had - 1);
        target.set(has + 1);
        Ok(())
    }

    /// Calls that name the same keys in any order neither overlap nor deadlock in a ring.
    #[tokio::test(start_paused = true)]
    async fn calls_in_a_ring_all_end() {
        let locks = testing::memory_manager();
        let accounts = [Cell::new(0), Cell::new(0), Cell::new(0)];
        let there = |from: usize| {
            let (locks, accounts) = (&locks, &accounts);
            async move {
                for _ in 0..20 {
                    move_one(locks, from, (from + 1) % 3, accounts).await.unwrap();
                }
            }
        };
        timeout(LONG, async { tokio::join!(there(0), there(1), there(2)) }).await.unwrap();
        assert_eq!(accounts.map(Cell::into_inner), [0, 0, 0]);
    }

    struct Shop {
        locks: LockManager,
        tenant: &'static str,
    }

    impl Shop {
        #[distributed_lock(
            keys = [
                "order:<items[0].0>",
                MultiKey::read("rates:<day>"),
                self.fixed(),
                format!("day:{day}"),
                MultiKey::mutex(day),
            ],
            kind = write,
            prefix = self.prefix(count),
            manager = self.locks,
            guard = lock
        )]
        async fn mixed(
            &self,
            items: &[(u64, u64)],
            day: &str,
            count: &Cell<u32>,
        ) -> Result<Vec<(String, Option<Kind>)>, LockError> {
            let mut kinds = Vec::new();
            for (key, _) in lock.tokens() {
                let kind = self.locks.status(&key).await?.kind;
                kinds.push((key.to_string(), kind));
            }
            Ok(kinds)
        }

        fn fixed(&self) -> LockKey {
            LockKey::new("all").unwrap()
        }

        fn prefix(&self, count: &Cell<u32>) -> String {
            count.set(count.get() + 1);
            format!("{{{}}}:", self.tenant)
        }
    }

    /// `kind` applies to bare keys; a `MultiKey` has its own. The prefix goes before all of them
    /// and is computed once.
    #[tokio::test(start_paused = true)]
    async fn a_list_may_mix_templates_keys_and_kinds() {
        let shop = Shop { locks: testing::memory_manager(), tenant: "t" };
        let count = Cell::new(0);
        let kinds = shop.mixed(&[(7, 0)], "monday", &count).await.unwrap();
        let expected = [
            ("{t}:all", Kind::Write),
            ("{t}:day:monday", Kind::Write),
            ("{t}:monday", Kind::Mutex),
            ("{t}:order:7", Kind::Write),
            ("{t}:rates:monday", Kind::Read),
        ];
        assert_eq!(kinds, expected.map(|(key, kind)| (key.to_owned(), Some(kind))));
        assert_eq!(count.get(), 1);

        let error = shop.mixed(&[], "monday", &count).await.unwrap_err();
        assert!(error.to_string().contains("<items[0].0>"), "{error}");
        let error = shop.mixed(&[(7, 0)], "{", &count).await.unwrap_err();
        assert!(matches!(error, LockError::InvalidKey(_)), "{error}");
    }

    #[distributed_lock(keys = ids.iter().map(|id| next(count, *id)), kind = read, manager = locks, guard = lock)]
    async fn computed(locks: &LockManager, ids: &[u64], count: &Cell<u32>) -> Result<usize, LockError> {
        tokio::task::yield_now().await;
        let _ = (locks, ids, count);
        Ok(lock.tokens().len())
    }

    fn next(count: &Cell<u32>, id: u64) -> String {
        count.set(count.get() + 1);
        format!("page:{id}")
    }

    /// The expression is iterated over once, before the wait. Its bare keys get the function's
    /// kind.
    #[tokio::test(start_paused = true)]
    async fn the_keys_are_computed_once_and_before_the_body() {
        let locks = testing::memory_manager();
        let count = Cell::new(0);
        let reader = locks.read("page:1").acquire().await.unwrap();
        let call = computed(&locks, &[1, 2, 2], &count);
        assert_eq!(timeout(LONG, call).await.unwrap().unwrap(), 2);
        assert_eq!(count.get(), 3);
        reader.release().await.unwrap();
    }

    #[distributed_lock(keys = &keys, wait = "none")]
    async fn given(keys: Vec<MultiKey>) -> Result<(), LockError> {
        Ok(())
    }

    #[distributed_lock(keys = names, kind = write, wait = "none")]
    async fn named(names: &[&str]) -> Result<(), LockError> {
        let _ = names;
        Ok(())
    }

    /// The default manager serves several keys too. No manager, no keys, and one key in two kinds
    /// are errors that say so.
    #[tokio::test(start_paused = true)]
    async fn keys_that_make_no_lock_are_misconfigured() {
        let reason = |error: LockError| match error {
            LockError::Misconfigured { reason } => reason.to_string(),
            other => panic!("{other}"),
        };
        assert!(reason(named(&["a"]).await.unwrap_err()).contains("set_default"));
        with_default(testing::memory_manager(), async {
            named(&["a", "b"]).await.unwrap();
            given(vec![MultiKey::read("a"), MultiKey::write("b")]).await.unwrap();
            assert!(reason(named(&[]).await.unwrap_err()).contains("no key was given"));
            let twice = vec![MultiKey::read("a"), MultiKey::write("a")];
            assert!(reason(given(twice).await.unwrap_err()).contains("twice"));
        })
        .await;
    }

    #[distributed_lock(key = "account:1", manager = locks, guard = lock)]
    async fn one_then_both(locks: &LockManager) -> Result<(), LockError> {
        let both = both(locks).await?;
        assert_eq!(both.len(), 2);
        assert!(
            both.iter().any(|(_, token)| *token == lock.fencing_token()),
            "the held key was entered again"
        );
        Ok(())
    }

    #[distributed_lock(keys = ["account:1", "account:2"], manager = locks, wait = "none", guard = lock)]
    async fn both(locks: &LockManager) -> Result<Vec<(LockKey, FencingToken)>, LockError> {
        Ok(lock.tokens())
    }

    /// A call of several keys inside a call that holds one of them takes the others.
    #[tokio::test(start_paused = true)]
    async fn a_key_of_the_enclosing_call_is_entered_again() {
        one_then_both(&testing::memory_manager()).await.unwrap();
    }
}
