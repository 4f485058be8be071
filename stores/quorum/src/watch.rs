//! Watch: merges the notices of all stores.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use lock_core::store::{AcquireRequest, Kind, Notice, StoreError, Watch};
use tokio::sync::mpsc;
use tokio::task::AbortHandle;

use super::calls::{Answers, Quorum};
use super::wake::Wake;

/// Maximum number of queued notices; all of them say the same.
const QUEUE: usize = 2;
/// Delay before a store that could not be watched is asked again.
const WATCH_AGAIN: Duration = Duration::from_secs(1);

/// Aborts the listening task on drop.
struct Listening(AbortHandle);

impl Drop for Listening {
    fn drop(&mut self) {
        self.0.abort();
    }
}

pub(super) async fn watch(quorum: Arc<Quorum>, request: Arc<AcquireRequest>) -> Result<Watch, StoreError> {
    let limit = request.timeout * 3 / 4;
    let mut answers = ask(&quorum, &request, quorum.all(), limit);
    let mut ears = Ears { watches: (0..quorum.len()).map(|_| None).collect() };
    let mut error = None;
    while ears.confirmed() < quorum.majority() {
        match answers.next().await {
            Some((node, Ok(watch))) => ears.put(node, watch),
            Some((_, Err(failed))) => error = Some(failed),
            None => break,
        }
    }
    let confirmed = ears.confirmed() >= quorum.majority();
    if let Some(error) = error.filter(|_| ears.are_none()) {
        return Err(error);
    }
    let (notices, receiver) = mpsc::channel(QUEUE);
    let tasks = quorum.options.tasks.clone();
    let task = tasks.spawn(listen(quorum, request, limit, ears, answers, notices));
    Ok(Watch::new(receiver, confirmed, Box::new(Listening(task.abort_handle()))))
}

fn ask(
    quorum: &Quorum,
    request: &Arc<AcquireRequest>,
    nodes: impl IntoIterator<Item = usize>,
    limit: Duration,
) -> Answers<Watch> {
    quorum.ask(nodes, limit, |_, store| {
        let watched = AcquireRequest::new(request.items.clone(), request.lease, limit);
        // As in the ballots.
        store.watch(Arc::new(watched.indirect()))
    })
}

/// The watches of all stores.
struct Ears {
    watches: Vec<Option<Watch>>,
}

impl Ears {
    fn put(&mut self, node: usize, watch: Watch) {
        if let Some(place) = self.watches.get_mut(node) {
            *place = Some(watch);
        }
    }

    fn confirmed(&self) -> usize {
        self.watches.iter().flatten().filter(|watch| watch.is_confirmed()).count()
    }

    fn are_none(&self) -> bool {
        self.watches.iter().all(Option::is_none)
    }

    /// Returns the stores without a confirmed watch.
    fn deaf(&self) -> Vec<usize> {
        let deaf = |watch: &Option<Watch>| watch.as_ref().is_none_or(|watch| !watch.is_confirmed());
        self.watches.iter().enumerate().filter(|(_, watch)| deaf(watch)).map(|(node, _)| node).collect()
    }

    /// Waits for the next notice of any store. Cancel safe.
    async fn hear(&mut self) -> (usize, Notice) {
        poll_fn(|cx| {
            for (node, place) in self.watches.iter_mut().enumerate() {
                let Some(watch) = place else { continue };
                match watch.poll_notice(cx) {
                    Poll::Ready(Some(notice)) => return Poll::Ready((node, notice)),
                    // The store is gone.
                    Poll::Ready(None) => *place = None,
                    Poll::Pending => {}
                }
            }
            Poll::Pending
        })
        .await
    }
}

async fn listen(
    quorum: Arc<Quorum>,
    request: Arc<AcquireRequest>,
    limit: Duration,
    mut ears: Ears,
    mut answers: Answers<Watch>,
    notices: mpsc::Sender<Notice>,
) {
    // The notices of a fair waiter are for it alone, and come from the gate.
    let alone = request.items.iter().any(|item| item.kind == Kind::Fair);
    let mut wake = Wake::new(quorum.len(), if alone { 1 } else { quorum.majority() });
    let mut again = quorum.now() + WATCH_AGAIN;
    loop {
        let now = quorum.now();
        let due = wake.due().map(|due| due.since(now));
        tokio::select! {
            biased;
            (node, notice) = ears.hear() => match notice {
                // Any notice may have been missed.
                Notice::Resubscribed => drop(notices.try_send(Notice::Resubscribed)),
                _ => wake.heard(node, quorum.now(), quorum.pause(0.0, 2.0)),
            },
            () = tokio::time::sleep(due.unwrap_or_default()), if due.is_some() => {
                wake.woken();
                let _ = notices.try_send(Notice::Retry);
            }
            answer = answers.next(), if answers.open() > 0 => {
                if let Some((node, Ok(watch))) = answer {
                    ears.put(node, watch);
                }
            }
            () = tokio::time::sleep(again.since(now)), if answers.open() == 0 && !ears.deaf().is_empty() => {
                again = quorum.now() + WATCH_AGAIN;
                answers = ask(&quorum, &request, ears.deaf(), limit);
            }
        }
    }
}
