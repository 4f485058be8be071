//! A network that breaks: each fault, before and after the server has executed a request, in each
//! phase of a lock.
//!
//! In each case one manager reaches the server through its own [`Proxy`] and another one directly.
//! Both want the same key, and the overlap checker judges their work under it. Each case runs in
//! both layouts.
//!
//! A case asserts that its fault has hit, that errors have the right kind, and that the same
//! manager behind the proxy works again. In the end the key must be free, long before a lease of
//! two minutes could have freed it.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use lock_runtime::{ConnectError, LockError, LockGuard, LockManager, LockManagerBuilder, Loss};
use lock_tests::overlap::{Recorder, Report};
use lock_tests::proxy::{Fault, Injection, Line, Proxy, Way};
use lock_tests::{Layout, RedisServer, eventually};
use tempfile::TempDir;
use tokio::task::{JoinHandle, JoinSet, LocalSet};
use tokio::time::Instant;

/// Lease of locks that must be released, since it does not end within [`SLACK`].
const LONG: Duration = Duration::from_secs(120);
/// Time-out for something quick, on a busy machine.
const SLACK: Duration = Duration::from_secs(40);
const CALL_TIMEOUT: Duration = Duration::from_millis(500);

/// Delay shorter than the time-out of a call.
const SHORT_DELAY: Fault = Fault::Delay(Duration::from_millis(100));
/// Delay longer than any call waits for its answer.
const LONG_DELAY: Fault = Fault::Delay(Duration::from_millis(1500));
const FAULTS: [Fault; 6] =
    [SHORT_DELAY, LONG_DELAY, Fault::BlackHole, Fault::Close, Fault::HalfClose, Fault::Reset];
const WAYS: [Way; 2] = [Way::ToServer, Way::ToClient];

fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// One fault in one direction.
#[derive(Clone, Copy, Debug)]
struct Case {
    fault: Fault,
    way: Way,
}

impl Case {
    fn all() -> impl Iterator<Item = Self> {
        FAULTS.into_iter().flat_map(|fault| WAYS.map(|way| Self { fault, way }))
    }

    /// Returns the cases that leave a call without an answer, however fast the machine is.
    fn fatal() -> impl Iterator<Item = Self> {
        Self::all().filter(|case| case.is_fatal())
    }

    fn is_fatal(self) -> bool {
        self.fault != SHORT_DELAY
    }
}

/// Runs `run` for all cases in each layout at once, each on its own key and with its own managers.
async fn for_each<F>(cases: impl Iterator<Item = Case>, run: impl Fn(Scene, Case) -> F)
where
    F: Future<Output = ()> + 'static,
{
    let servers = Layout::ALL.map(|layout| (layout, Arc::new(RedisServer::start())));
    let here = LocalSet::new();
    let mut running = Vec::new();
    for (n, case) in cases.enumerate() {
        for (layout, server) in &servers {
            let scene = Scene::start(server, *layout, format!("case-{n}")).await;
            running.push((*layout, case, here.spawn_local(run(scene, case))));
        }
    }
    assert!(!running.is_empty());
    here.await;
    for (layout, case, done) in running {
        if let Err(panic) = done.await {
            panic!("{layout:?}, {case:?}: {panic}");
        }
    }
}

fn settings() -> LockManagerBuilder {
    LockManager::builder()
        .lease(LONG)
        .call_timeout(CALL_TIMEOUT)
        .connect_timeout(ms(1000))
        .fallback_poll(ms(1000))
        .subscription_linger(ms(100))
}

/// Connects a manager behind `proxy`, which breaks nothing now. Retries, since a busy machine may
/// need more than the connect time-out.
async fn connected(settings: LockManagerBuilder, layout: Layout, proxy: &Proxy) -> LockManager {
    let start = Instant::now();
    loop {
        match settings.clone().connect(layout.url(&proxy.url())).await {
            Ok(locks) => return locks,
            Err(error) => assert!(start.elapsed() < SLACK, "{error}"),
        }
    }
}

/// Releases a lock by a call with a short time-out, which a busy machine may miss.
async fn release(guard: LockGuard) {
    if let Err(error) = guard.release().await {
        assert!(matches!(error, LockError::Unconfirmed { .. }), "{error:?}");
    }
}

/// Two managers that want one key: one behind a proxy, one beside it.
struct Scene {
    server: Arc<RedisServer>,
    layout: Layout,
    proxy: Proxy,
    proxied: LockManager,
    direct: LockManager,
    key: String,
    log: PathBuf,
    _dir: Arc<TempDir>,
}

impl Scene {
    async fn start(server: &Arc<RedisServer>, layout: Layout, key: String) -> Self {
        let dir = Arc::new(tempfile::tempdir().unwrap());
        let log = dir.path().join("overlap");
        let proxy = Proxy::start(server.addr()).await;
        let proxied = connected(settings(), layout, &proxy).await;
        // Its calls never meet a fault, so they may take as long as a busy machine makes them.
        let direct = settings().call_timeout(LONG).connect(layout.url(&server.url())).await.unwrap();
        let scene = Self { server: Arc::clone(server), layout, proxy, proxied, direct, key, log, _dir: dir };
        // The scripts are loaded: each call is one message from here on.
        let guard = scene.direct.mutex(&scene.key).lease(LONG).acquire().await.unwrap();
        guard.extend(LONG).await.unwrap();
        guard.release().await.unwrap();
        assert!(!scene.direct.force_release(&scene.key).await.unwrap());
        release(scene.proxied.mutex(&scene.key).wait(LONG).acquire().await.unwrap()).await;
        scene
    }

    /// Makes the next `count` messages meet the fault of `case`.
    fn inject(&self, count: usize, line: Line, case: Case) -> Injection {
        self.proxy.next(count, line, case.way, case.fault)
    }

    /// Makes the directly connected manager take the key again and again, until it is told to stop.
    fn rival(&self) -> Rival {
        let (locks, key) = (self.direct.clone(), self.key.clone());
        let recorder = self.recorder();
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let task = tokio::spawn(async move {
            let mut rounds = 0;
            while !stopped.load(Ordering::SeqCst) {
                let guard = locks.mutex(&key).wait(LONG).acquire().await.unwrap();
                section(&recorder, &guard).await;
                guard.release().await.unwrap();
                rounds += 1;
                tokio::time::sleep(ms(20)).await;
            }
            rounds
        });
        Rival { stop, task }
    }

    fn recorder(&self) -> Recorder {
        Recorder::open(&self.log).unwrap()
    }

    /// Connects another manager behind the proxy.
    async fn connected(&self, settings: LockManagerBuilder) -> LockManager {
        connected(settings, self.layout, &self.proxy).await
    }

    /// Whether the server has a lock on the key.
    fn is_locked(&self) -> bool {
        self.server.cli(&["EXISTS", &format!("lock:{}", self.key)]) == "1"
    }

    /// Waits until all delayed messages have arrived, so that late copies of abandoned calls can do
    /// their harm.
    async fn nothing_is_under_way(&self) {
        eventually(async || self.proxy.delayed() == 0, SLACK).await;
    }

    async fn proxied_section(&self) {
        let guard = self.proxied.mutex(&self.key).wait(LONG).acquire().await.unwrap();
        section(&self.recorder(), &guard).await;
        release(guard).await;
    }

    /// Ends a case. The same manager behind the proxy works, the rival has been in since, nobody
    /// overlapped, tokens grew, and nothing is left of the lock.
    async fn finish(self, rival: Rival) {
        self.nothing_is_under_way().await;
        self.proxied_section().await;
        rival.end().await;
        let last = self.direct.mutex(&self.key).wait(LONG).acquire().await.unwrap();
        section(&self.recorder(), &last).await;
        last.release().await.unwrap();
        eventually(async || !self.is_locked(), SLACK).await;
        let report = Report::read(&self.log).unwrap();
        assert!(report.total() >= 3, "{report}");
        report.assert_clean();
    }
}

struct Rival {
    stop: Arc<AtomicBool>,
    task: JoinHandle<usize>,
}

impl Rival {
    async fn end(self) {
        self.stop.store(true, Ordering::SeqCst);
        let rounds = tokio::time::timeout(SLACK, self.task).await.expect("the rival gets in").unwrap();
        assert!(rounds > 0);
    }
}

async fn section(recorder: &Recorder, guard: &LockGuard) {
    let key = guard.key().to_string();
    let section = recorder.enter(&key, guard.fencing_token().get(), || guard.remaining());
    tokio::time::sleep(ms(5)).await;
    recorder.leave(section, || guard.remaining());
}

async fn hit(injection: &Injection) {
    eventually(async || injection.hits() > 0, SLACK).await;
}

// Connect.

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connect_that_breaks_is_unavailable_and_the_next_one_works() {
    for_each(Case::all(), |scene, case| async move {
        let rival = scene.rival();
        let injection = scene.proxy.from_now(Line::Connecting, case.way, case.fault);
        let start = Instant::now();
        // A short delay hits each message of the handshake, and the connect may take two seconds
        // altogether.
        let outcome =
            settings().connect_timeout(ms(1400)).connect(scene.layout.url(&scene.proxy.url())).await;
        assert!(start.elapsed() < SLACK, "{:?}", start.elapsed());
        assert!(injection.hits() > 0);
        match outcome {
            Ok(_) => assert!(!case.is_fatal(), "connected all the same"),
            Err(error) => {
                assert!(matches!(error, ConnectError::Unavailable { .. }), "{error:?}");
                let port = scene.proxy.addr().port().to_string();
                assert!(error.to_string().contains(&port), "{error}");
            }
        }
        injection.lift();
        scene.connected(settings()).await;
        scene.finish(rival).await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiting_acquire_outlives_connections_that_can_not_be_made() {
    for_each(Case::all(), |scene, case| async move {
        let rival = scene.rival();
        let broken = scene.proxy.next(1, Line::Commands, Way::ToServer, Fault::Reset);
        let injection = scene.inject(3, Line::Connecting, case);
        scene.proxied_section().await;
        assert_eq!(broken.hits(), 1);
        hit(&injection).await;
        scene.finish(rival).await;
    })
    .await;
}

// Acquire.

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_acquire_that_breaks_is_repeated_and_excludes() {
    for_each(Case::all(), |scene, case| async move {
        let rival = scene.rival();
        let injection = scene.inject(1, Line::Commands, case);
        scene.proxied_section().await;
        assert_eq!(injection.hits(), 1);
        scene.finish(rival).await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_try_that_breaks_is_unavailable_and_takes_nothing() {
    for_each(Case::all(), |scene, case| async move {
        let injection = scene.inject(1, Line::Commands, case);
        match scene.proxied.mutex(&scene.key).try_acquire().await {
            Ok(guard) => {
                assert!(!case.is_fatal(), "an answer that nobody got");
                release(guard.expect("nobody holds it")).await;
            }
            Err(error) => assert!(matches!(error, LockError::Unavailable { .. }), "{error:?}"),
        }
        assert_eq!(injection.hits(), 1);
        // Its lease would end much later: the acquired lock is given back, and a late copy takes
        // nothing.
        eventually(async || !scene.is_locked(), SLACK).await;
        scene.nothing_is_under_way().await;
        let rival = scene.rival();
        scene.finish(rival).await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_acquire_that_is_dropped_while_its_call_is_lost_leaves_nothing() {
    for_each(Case::all(), |scene, case| async move {
        let injection = scene.inject(1, Line::Commands, case);
        let waiter = tokio::spawn({
            let (locks, key) = (scene.proxied.clone(), scene.key.clone());
            async move { locks.mutex(key).wait(LONG).acquire().await.map(drop) }
        });
        hit(&injection).await;
        waiter.abort();
        let _ = waiter.await;
        eventually(async || !scene.is_locked(), SLACK).await;
        scene.nothing_is_under_way().await;
        let rival = scene.rival();
        scene.finish(rival).await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_acquire_whose_answers_never_come_is_unavailable_when_its_wait_ends() {
    for_each(Case::fatal(), |scene, case| async move {
        let rival = scene.rival();
        let injection = scene.proxy.from_now(Line::Commands, case.way, case.fault);
        let start = Instant::now();
        let error = scene.proxied.mutex(&scene.key).wait(ms(2000)).acquire().await.unwrap_err();
        assert!(start.elapsed() >= ms(2000) && start.elapsed() < SLACK, "{:?}", start.elapsed());
        assert!(matches!(error, LockError::Unavailable { .. }), "{error:?}");
        assert!(injection.hits() > 1, "it was sent again");
        injection.lift();
        scene.finish(rival).await;
    })
    .await;
}

// Waiting.

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_gets_in_although_the_message_of_the_release_breaks() {
    for_each(Case::all(), |scene, case| async move {
        // For the server, the subscription breaks; for the client, the message.
        let guard = scene.direct.mutex(&scene.key).acquire().await.unwrap();
        let injection = match case.way {
            Way::ToServer => Some(scene.inject(1, Line::PubSub, case)),
            Way::ToClient => None,
        };
        let waiter = tokio::spawn({
            let (locks, key) = (scene.proxied.clone(), scene.key.clone());
            async move { locks.mutex(key).wait(LONG).acquire().await }
        });
        let injection = match injection {
            Some(injection) => {
                hit(&injection).await;
                injection
            }
            None => {
                eventually(async || scene.proxy.passed(Line::PubSub, Way::ToClient) > 0, SLACK).await;
                scene.inject(1, Line::PubSub, case)
            }
        };
        assert!(!waiter.is_finished());
        let recorder = scene.recorder();
        section(&recorder, &guard).await;
        guard.release().await.unwrap();
        let start = Instant::now();
        let guard = waiter.await.unwrap().unwrap();
        assert!(start.elapsed() < SLACK, "{:?}", start.elapsed());
        section(&recorder, &guard).await;
        release(guard).await;
        hit(&injection).await;
        assert_eq!(injection.hits(), 1);
        let rival = scene.rival();
        scene.finish(rival).await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_without_any_messages_gets_in() {
    for_each(Case::all(), |scene, case| async move {
        let rival = scene.rival();
        let injections =
            [Line::PubSub, Line::Connecting].map(|line| scene.proxy.from_now(line, case.way, case.fault));
        let guard = scene.direct.mutex(&scene.key).wait(LONG).acquire().await.unwrap();
        let waiter = tokio::spawn({
            let (locks, key) = (scene.proxied.clone(), scene.key.clone());
            async move { locks.mutex(key).wait(LONG).acquire().await }
        });
        // Either no subscriber connection can be made, or nothing is heard on it.
        eventually(async || injections.iter().any(|injection| injection.hits() > 0), SLACK).await;
        guard.release().await.unwrap();
        let guard = waiter.await.unwrap().unwrap();
        section(&scene.recorder(), &guard).await;
        release(guard).await;
        drop(injections);
        scene.finish(rival).await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_outlives_a_network_that_is_gone_for_a_while() {
    for_each(Case::fatal(), |scene, case| async move {
        let guard = scene.direct.mutex(&scene.key).acquire().await.unwrap();
        let waiter = tokio::spawn({
            let (locks, key) = (scene.proxied.clone(), scene.key.clone());
            async move { locks.mutex(key).wait(LONG).acquire().await }
        });
        eventually(async || scene.proxy.passed(Line::PubSub, Way::ToClient) > 0, SLACK).await;
        let [messages, commands, connecting] = [Line::PubSub, Line::Commands, Line::Connecting]
            .map(|line| scene.proxy.from_now(line, case.way, case.fault));
        guard.release().await.unwrap();
        // A poll breaks its connection, and then no other can be made.
        eventually(async || commands.hits() > 0 && connecting.hits() > 2, SLACK).await;
        assert!(!waiter.is_finished());
        let rival = scene.rival();
        drop((messages, commands, connecting));
        let guard = waiter.await.unwrap().unwrap();
        section(&scene.recorder(), &guard).await;
        release(guard).await;
        scene.finish(rival).await;
    })
    .await;
}

// Renewal.

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_renewal_that_breaks_is_repeated_before_the_lease_is_over() {
    const LEASE: Duration = Duration::from_secs(12);
    for_each(Case::all(), |scene, case| async move {
        let locks = scene.connected(settings().lease(LEASE)).await;
        let guard = locks.mutex(&scene.key).wait(LONG).acquire().await.unwrap();
        let acquired = Instant::now();
        let rival = scene.rival();
        let recorder = scene.recorder();
        let held = recorder.enter(guard.key().as_str(), guard.fencing_token().get(), || guard.remaining());
        let injection = scene.inject(1, Line::Commands, case);
        hit(&injection).await;
        // More than the first lease can leave. The earlier time comes first, so that a pause
        // between the two makes the sum smaller.
        let renewed = || acquired.elapsed() + guard.remaining() > LEASE;
        eventually(async || renewed(), LEASE).await;
        assert!(!guard.is_lost());
        recorder.leave(held, || guard.remaining());
        release(guard).await;
        scene.finish(rival).await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_whose_renewals_all_break_is_lost_before_another_gets_in() {
    const LEASE: Duration = Duration::from_secs(5);
    for_each(Case::fatal(), |scene, case| async move {
        let locks = scene.connected(settings().lease(LEASE)).await;
        let (recorder, mut injected) = (scene.recorder(), None);
        let body = locks.mutex(&scene.key).wait(LONG).with(async |view| {
            injected = Some((scene.proxy.from_now(Line::Commands, case.way, case.fault), scene.rival()));
            // Never left: it is inside while its lock was known to be valid, and is not polled
            // after that.
            let _section =
                recorder.enter(view.key().as_str(), view.fencing_token().get(), || view.remaining());
            std::future::pending::<()>().await;
        });
        let outcome = tokio::time::timeout(LEASE + SLACK, body).await.expect("the body is cancelled");
        let (injection, rival) = injected.expect("the body began");
        assert!(matches!(outcome, Err(LockError::Lost { why: Loss::LeaseOver, .. })), "{outcome:?}");
        assert!(injection.hits() > 0);
        injection.lift();
        // The same manager again.
        release(locks.mutex(&scene.key).wait(LONG).acquire().await.unwrap()).await;
        scene.finish(rival).await;
    })
    .await;
}

// Release.

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_release_that_breaks_is_unconfirmed_and_done_long_before_the_lease_is_over() {
    for_each(Case::all(), |scene, case| async move {
        let guard = scene.proxied.mutex(&scene.key).wait(LONG).acquire().await.unwrap();
        let rival = scene.rival();
        section(&scene.recorder(), &guard).await;
        let token = guard.fencing_token();
        let injection = scene.inject(1, Line::Commands, case);
        match guard.release().await {
            Ok(()) => assert!(!case.is_fatal(), "an answer that nobody got"),
            Err(error) => assert!(matches!(error, LockError::Unconfirmed { .. }), "{error:?}"),
        }
        assert_eq!(injection.hits(), 1);
        let next = tokio::time::timeout(SLACK, scene.direct.mutex(&scene.key).wait(LONG).acquire());
        let next = next.await.expect("it is free before its lease is over").unwrap();
        assert!(next.fencing_token() > token);
        next.release().await.unwrap();
        scene.finish(rival).await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_guard_dropped_while_the_network_breaks_frees_the_lock() {
    for_each(Case::all(), |scene, case| async move {
        let guard = scene.proxied.mutex(&scene.key).wait(LONG).acquire().await.unwrap();
        section(&scene.recorder(), &guard).await;
        let injection = scene.inject(2, Line::Commands, case);
        drop(guard);
        hit(&injection).await;
        eventually(async || !scene.is_locked(), SLACK).await;
        injection.lift();
        let rival = scene.rival();
        scene.finish(rival).await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_shutdown_without_a_network_ends_and_leaves_the_lock_to_its_lease() {
    const LEASE: Duration = Duration::from_secs(12);
    for_each(Case::fatal(), |scene, case| async move {
        let locks = scene.connected(settings().lease(LEASE)).await;
        let guard = locks.mutex(&scene.key).wait(LONG).acquire().await.unwrap();
        let rival = scene.rival();
        section(&scene.recorder(), &guard).await;
        let lines = [Line::Commands, Line::Connecting];
        let injections = lines.map(|line| scene.proxy.from_now(line, case.way, case.fault));
        let start = Instant::now();
        let error = locks.shutdown(Duration::ZERO).await.unwrap_err();
        assert!(start.elapsed() < SLACK, "{:?}", start.elapsed());
        assert_eq!(error.cut_off(), 1);
        assert!(guard.is_lost());
        drop((guard, locks));
        let next = tokio::time::timeout(SLACK, scene.direct.mutex(&scene.key).wait(LONG).acquire());
        next.await.expect("one lease at most").unwrap().release().await.unwrap();
        assert!(injections[0].hits() > 0);
        drop(injections);
        scene.finish(rival).await;
    })
    .await;
}

// Administration and extension.

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_forced_release_that_breaks_is_unavailable_and_done_or_not_done() {
    for_each(Case::all(), |scene, case| async move {
        let guard = scene.direct.mutex(&scene.key).wait(LONG).acquire().await.unwrap();
        let injection = scene.inject(1, Line::Commands, case);
        match scene.proxied.force_release(&scene.key).await {
            Ok(freed) => assert!(freed && !case.is_fatal(), "{freed}"),
            Err(error) => {
                assert!(matches!(error, LockError::Unavailable { .. }), "{error:?}");
                assert!(!error.body_started());
            }
        }
        assert_eq!(injection.hits(), 1);
        match (case.way, case.fault) {
            // Done; a request with a long delay still arrives.
            (Way::ToClient, _) | (_, Fault::Delay(_)) => {}
            (Way::ToServer, _) => {
                assert!(scene.is_locked(), "the server has never seen it");
                assert!(!guard.is_lost());
                while let Err(error) = scene.proxied.force_release(&scene.key).await {
                    assert!(matches!(error, LockError::Unavailable { .. }), "{error:?}");
                }
            }
        }
        eventually(async || !scene.is_locked(), SLACK).await;
        let error = guard.release().await.unwrap_err();
        assert!(matches!(error, LockError::Lost { why: Loss::TakenAway, .. }), "{error:?}");
        let rival = scene.rival();
        scene.finish(rival).await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_extension_that_breaks_is_unavailable_and_never_shortens() {
    const LEASE: Duration = Duration::from_secs(30);
    const LONGER: Duration = Duration::from_secs(100);
    for_each(Case::all(), |scene, case| async move {
        let guard = scene.proxied.mutex(&scene.key).lease(LEASE).wait(LONG).acquire().await.unwrap();
        let acquired = Instant::now();
        let recorder = scene.recorder();
        let held = recorder.enter(guard.key().as_str(), guard.fencing_token().get(), || guard.remaining());
        let rival = scene.rival();
        let injection = scene.inject(1, Line::Commands, case);
        match guard.extend(LONGER).await {
            Ok(()) => assert!(!case.is_fatal(), "an answer that nobody got"),
            Err(error) => {
                assert!(matches!(error, LockError::Unconfirmed { .. }), "{error:?}");
                // An unconfirmed extension does not count.
                let sum = acquired.elapsed() + guard.remaining();
                assert!(sum <= LEASE, "{sum:?}");
            }
        }
        assert_eq!(injection.hits(), 1);
        assert!(!guard.is_lost());
        while let Err(error) = guard.extend(LONGER).await {
            assert!(matches!(error, LockError::Unconfirmed { .. }), "{error:?}");
        }
        assert!(acquired.elapsed() + guard.remaining() > LEASE, "{:?}", guard.remaining());
        recorder.leave(held, || guard.remaining());
        release(guard).await;
        scene.finish(rival).await;
    })
    .await;
}

// Many calls on one connection.

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_that_break_together_fail_or_succeed_each_and_leave_nothing() {
    const CALLS: usize = 50;
    for_each(Case::all(), |scene, case| async move {
        let injection = scene.inject(2, Line::Commands, case);
        let mut calls = JoinSet::new();
        for n in 0..CALLS {
            let mutex = scene.proxied.mutex(format!("{}:{n}", scene.key));
            calls.spawn(mutex.try_acquire());
        }
        let mut failed = 0;
        for outcome in calls.join_all().await {
            match outcome {
                Ok(guard) => release(guard.expect("nobody else wants it")).await,
                Err(error) => {
                    assert!(matches!(error, LockError::Unavailable { .. }), "{error:?}");
                    failed += 1;
                }
            }
        }
        assert!(injection.hits() > 0);
        assert!(failed > 0 || !case.is_fatal(), "an answer that nobody got");
        let left = || scene.server.cli(&["KEYS", &format!("lock:{}:*", scene.key)]);
        eventually(async || left().is_empty(), SLACK).await;
        scene.nothing_is_under_way().await;
        let rival = scene.rival();
        // Late copies take nothing.
        for n in 0..CALLS {
            let guard = scene.direct.mutex(format!("{}:{n}", scene.key)).no_wait().acquire().await.unwrap();
            guard.release().await.unwrap();
        }
        scene.finish(rival).await;
    })
    .await;
}

// Everything at once.

/// Injects each fault, in both directions, on each kind of connection; the next one when the last
/// one has hit.
async fn break_everything(proxy: &Proxy, cases: impl Iterator<Item = Case>) {
    for Case { fault, way } in cases {
        hit(&proxy.next(1, Line::Commands, way, fault)).await;
        // A new connection is made, which meets the fault too.
        let injection = proxy.next(1, Line::Connecting, way, fault);
        hit(&proxy.next(1, Line::Commands, Way::ToServer, Fault::Reset)).await;
        hit(&injection).await;
        // Only a PING notices a black hole there, after seconds; that has a separate test.
        if fault != Fault::BlackHole {
            let injection = proxy.next(1, Line::PubSub, way, fault);
            if way == Way::ToServer {
                // It subscribes again.
                hit(&proxy.next(1, Line::PubSub, Way::ToClient, Fault::Reset)).await;
            }
            hit(&injection).await;
        }
    }
}

/// How workers enter in a storm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Enter {
    WithTheLock,
    AfterIt,
}

/// Runs workers of three managers, two of them behind proxies that break all the time, until each
/// has broken by `cases` cases. Returns the report of their work.
async fn storm(layout: Layout, enter: Enter, cases: usize) -> Report {
    const WORKERS: usize = 2;
    let server = Arc::new(RedisServer::start());
    let dir = tempfile::tempdir().unwrap();
    let log = dir.path().join("overlap");
    let mut proxies = Vec::new();
    let mut managers = vec![settings().lease(ms(3000)).connect(layout.url(&server.url())).await.unwrap()];
    for _ in 0..2 {
        let proxy = Proxy::start(server.addr()).await;
        managers.push(connected(settings().lease(ms(3000)), layout, &proxy).await);
        proxies.push(proxy);
    }
    let stop = Arc::new(AtomicBool::new(false));
    let mut workers = JoinSet::new();
    for locks in managers.iter().flat_map(|locks| std::iter::repeat_n(locks, WORKERS)) {
        let (locks, stop) = (locks.clone(), Arc::clone(&stop));
        let recorder = Recorder::open(&log).unwrap();
        workers.spawn(async move {
            while !stop.load(Ordering::SeqCst) {
                let guard = locks.mutex("storm").wait(LONG).acquire().await.unwrap();
                if enter == Enter::WithTheLock {
                    section(&recorder, &guard).await;
                    if let Err(error) = guard.release().await {
                        let typed = matches!(error, LockError::Lost { .. } | LockError::Unconfirmed { .. });
                        assert!(typed, "{error:?}");
                    }
                } else {
                    let token = guard.fencing_token().get();
                    drop(guard);
                    let section = recorder.enter("storm", token, || LONG);
                    tokio::time::sleep(ms(5)).await;
                    recorder.leave(section, || LONG);
                }
                tokio::time::sleep(ms(3)).await;
            }
        });
    }
    let cases = || Case::all().take(cases);
    tokio::join!(break_everything(&proxies[0], cases()), break_everything(&proxies[1], cases()));
    stop.store(true, Ordering::SeqCst);
    while let Some(done) = workers.join_next().await {
        done.unwrap();
    }
    let manager = managers.last().unwrap();
    release(manager.mutex("storm").wait(LONG).acquire().await.unwrap()).await;
    eventually(async || server.cli(&["EXISTS", "lock:storm"]) == "0", SLACK).await;
    Report::read(&log).unwrap()
}

async fn managers_behind_networks_that_break_all_the_time_never_overlap(layout: Layout) {
    let report = storm(layout, Enter::WithTheLock, usize::MAX).await;
    assert!(report.total() > 20, "{report}");
    report.assert_clean();
}

lock_tests::on_every_layout! { async: managers_behind_networks_that_break_all_the_time_never_overlap }

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_same_run_without_the_lock_is_noticed() {
    let report = storm(Layout::Hash, Enter::AfterIt, 2).await;
    assert!(!report.overlaps.is_empty(), "{report}");
}
