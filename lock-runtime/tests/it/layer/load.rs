//! A thousand clients for one key.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use http::StatusCode;
use http_body_util::BodyExt;
use lock_runtime::LockManager;
use lock_runtime::layer::{HeldUntil, LockLayer, PartKey};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};
use tower::{Layer, service_fn};

use super::rig::{MS, SECOND, Scene, Sent, by_path, ok, post, send};

const CLIENTS: usize = 1000;
const CAP: usize = 100;

/// Counts values that are alive, and their maximum.
#[derive(Debug, Default)]
struct Counter {
    now: AtomicUsize,
    most: AtomicUsize,
}

/// A counted value, stored in the extensions of a request: it lives as long as the request.
#[derive(Debug)]
struct Counted(Arc<Counter>);

impl Counted {
    fn new(counter: &Arc<Counter>) -> Self {
        counter.most.fetch_max(counter.now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
        Self(Arc::clone(counter))
    }
}

impl Clone for Counted {
    fn clone(&self) -> Self {
        Self::new(&self.0)
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.now.fetch_sub(1, Ordering::SeqCst);
    }
}

#[derive(Debug, Default)]
struct Counts {
    /// Handlers that are running.
    inside: Arc<Counter>,
    /// Requests that are neither answered nor passed to their handler.
    requests: Arc<Counter>,
    /// The inner service and its clones.
    services: Arc<Counter>,
}

/// The results of all clients.
#[derive(Debug, Default)]
struct Outcome {
    served: usize,
    refused: usize,
    /// When the last refused client had its answer.
    last_refusal: std::time::Duration,
    took: std::time::Duration,
}

async fn thousand(layer: &LockLayer<PartKey>, counts: &Counts) -> Outcome {
    let (inside, service) = (Arc::clone(&counts.inside), Counted::new(&counts.services));
    let service = layer.layer(service_fn(move |request: Sent| {
        let (inside, _own) = (Counted::new(&inside), service.clone());
        drop(request);
        async move {
            sleep(10 * MS).await;
            drop(inside);
            Ok::<_, Infallible>(ok())
        }
    }));
    let started = Instant::now();
    let mut clients = JoinSet::new();
    for _ in 0..CLIENTS {
        let mut request = post("/hot");
        request.extensions_mut().insert(Counted::new(&counts.requests));
        let sent = send(&service, request);
        clients.spawn(async move {
            let response = sent.await;
            let status = response.status();
            let answered = started.elapsed();
            drop(response.into_body().collect().await.unwrap());
            (status, answered)
        });
    }
    let mut outcome = Outcome::default();
    while let Some(client) = clients.join_next().await {
        match client.unwrap() {
            (StatusCode::OK, _) => outcome.served += 1,
            (StatusCode::TOO_MANY_REQUESTS, answered) => {
                outcome.refused += 1;
                outcome.last_refusal = answered.max(outcome.last_refusal);
                let waiting = counts.requests.now.load(Ordering::SeqCst);
                if outcome.refused == CLIENTS - CAP - 1 {
                    assert!(waiting <= CAP + 1, "{waiting} requests live on after their refusal");
                }
            }
            (status, _) => panic!("{status}"),
        }
    }
    outcome.took = started.elapsed();
    outcome
}

#[tokio::test(start_paused = true)]
async fn those_above_the_cap_are_refused_early_and_the_others_are_served_one_by_one() {
    for hold in [HeldUntil::Response, HeldUntil::BodyEnd] {
        let scene = Scene::new();
        let builder = || LockManager::builder().max_waiters_per_key(CAP);
        let capped = Scene::with(builder());
        let layers = [
            (LockLayer::new(scene.locks.clone(), by_path()).max_waiters(CAP), &scene),
            (LockLayer::new(scene.locks.clone(), by_path()).max_waiters_per_key(CAP), &scene),
            (LockLayer::new(capped.locks.clone(), by_path()), &capped),
        ];
        for (layer, scene) in layers {
            let (layer, counts) = (layer.wait(60 * SECOND).hold(hold), Counts::default());
            // Several waves: leftovers of one would show in the next.
            for _ in 0..3 {
                let outcome = thousand(&layer, &counts).await;
                assert_eq!(outcome.served + outcome.refused, CLIENTS);
                assert!((CAP..=CAP + 1).contains(&outcome.served), "{outcome:?}");
                assert!(outcome.last_refusal < 10 * MS, "before the first handler is done: {outcome:?}");
                assert_eq!(counts.inside.most.load(Ordering::SeqCst), 1, "one by one");
                // Each handler takes ten milliseconds; a hand-off takes next to nothing.
                assert!(outcome.took < 20 * MS * u32::try_from(CAP).unwrap(), "{outcome:?}");
                for counter in [&counts.inside, &counts.requests, &counts.services] {
                    assert_eq!(counter.now.load(Ordering::SeqCst), 0, "{outcome:?}");
                }
                scene.is_settled(None).await;
            }
        }
    }
}

/// Most requests exceed their wait, and none waits longer.
#[tokio::test(start_paused = true)]
async fn those_whose_wait_is_over_are_refused_in_time() {
    let (scene, counts) = (Scene::new(), Counts::default());
    let layer = LockLayer::new(scene.locks.clone(), by_path()).wait(SECOND);
    let outcome = thousand_patient(&layer, &counts).await;
    assert_eq!(outcome.served + outcome.refused, CLIENTS);
    assert!((50..=101).contains(&outcome.served), "{outcome:?}");
    assert!(outcome.took < 2 * SECOND, "{outcome:?}");
    assert_eq!(counts.inside.most.load(Ordering::SeqCst), 1);
    scene.is_settled(None).await;
}

async fn thousand_patient(layer: &LockLayer<PartKey>, counts: &Counts) -> Outcome {
    let inside = Arc::clone(&counts.inside);
    let service = layer.layer(service_fn(move |_: Sent| {
        let inside = Counted::new(&inside);
        async move {
            sleep(10 * MS).await;
            drop(inside);
            Ok::<_, Infallible>(ok())
        }
    }));
    let started = Instant::now();
    let mut clients: JoinSet<_> = (0..CLIENTS).map(|_| send(&service, post("/hot"))).collect();
    let mut outcome = Outcome::default();
    while let Some(response) = clients.join_next().await {
        match response.unwrap().status() {
            StatusCode::OK => outcome.served += 1,
            _ => outcome.refused += 1,
        }
    }
    outcome.took = started.elapsed();
    outcome
}

/// Half of the clients leave at some time, without effect on the others.
#[tokio::test(start_paused = true)]
async fn clients_that_leave_in_a_crowd_leave_nothing() {
    let scene = Scene::new();
    let served = Arc::new(Semaphore::new(0));
    let count = Arc::clone(&served);
    let layer = LockLayer::new(scene.locks.clone(), by_path()).wait_forever().hold(HeldUntil::BodyEnd);
    let service = layer.layer(service_fn(move |_: Sent| {
        let count = Arc::clone(&count);
        async move {
            sleep(MS).await;
            count.add_permits(1);
            Ok::<_, Infallible>(ok())
        }
    }));
    let mut clients = JoinSet::new();
    for n in 0..CLIENTS {
        let sent = send(&service, post("/hot"));
        clients.spawn(async move {
            let patience = if n % 2 == 0 { 3600 * SECOND } else { MS * u32::try_from(n).unwrap() / 2 };
            match tokio::time::timeout(patience, sent).await {
                Ok(response) => {
                    assert_eq!(response.status(), StatusCode::OK);
                    // Some clients don't read the response.
                    if n % 3 == 0 {
                        response.into_body().collect().await.unwrap();
                    }
                    true
                }
                Err(_) => false,
            }
        });
    }
    let mut answered = 0;
    while let Some(client) = clients.join_next().await {
        answered += usize::from(client.unwrap());
    }
    assert!(answered >= CLIENTS / 2 && answered <= served.available_permits(), "{answered}");
    scene.is_settled(None).await;
}
