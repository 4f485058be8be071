//! [`Watches`]: the deletions of keys, in one stream for all.

use std::collections::HashMap;
use std::pin::pin;
use std::sync::{Arc, Weak};
use std::time::Duration;

use lock_core::internal::sync::{Mutex, lock};
use tokio::sync::mpsc;
use tokio::time::timeout;
use tokio_stream::StreamExt;
use tokio_stream::wrappers::UnboundedReceiverStream;

use crate::client::{Client, WATCH};
use crate::messages::{
    NO_PUT, WatchCancelRequest, WatchCreateRequest, WatchRequest, WatchResponse, Watching,
};

/// Time for a watch to begin.
pub(crate) const BEGIN: Duration = Duration::from_secs(5);

/// How often a server with watches is checked.
const CHECK: Duration = Duration::from_secs(4);

/// The news of a watch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum News {
    /// It sees every deletion from now on.
    Begun,
    /// The key was deleted at this revision.
    Deleted(i64),
}

/// The watches of a manager.
#[derive(Debug)]
pub(crate) struct Watches {
    client: Arc<Client>,
    inner: Mutex<Inner>,
    me: Weak<Self>,
}

#[derive(Debug, Default)]
struct Inner {
    last: i64,
    /// The number of the open stream, and its requests.
    stream: u64,
    requests: Option<mpsc::UnboundedSender<WatchRequest>>,
    /// The watches, each with its stream.
    heard: HashMap<i64, (u64, mpsc::UnboundedSender<News>)>,
}

/// A watch of one key. Its channel ends when the stream does.
#[derive(Debug)]
pub(crate) struct KeyWatch {
    watches: Arc<Watches>,
    id: i64,
    news: mpsc::UnboundedReceiver<News>,
}

impl KeyWatch {
    /// Returns what happens next; `None` when the stream has ended.
    pub(crate) async fn next(&mut self) -> Option<News> {
        self.news.recv().await
    }
}

impl Drop for KeyWatch {
    fn drop(&mut self) {
        let mut inner = lock(&self.watches.inner);
        let heard = inner.heard.remove(&self.id);
        let requests = inner.requests.clone();
        drop(inner);
        // What is sent wakes a task.
        if let Some((_, requests)) = heard.zip(requests) {
            let cancel = Watching::Cancel(WatchCancelRequest { watch_id: self.id });
            let _ = requests.send(WatchRequest { request: Some(cancel) });
        }
    }
}

impl Watches {
    pub(crate) fn new(client: Arc<Client>) -> Arc<Self> {
        Arc::new_cyclic(|me| Self { client, inner: Mutex::default(), me: Weak::clone(me) })
    }

    /// Watches a key for its deletion. Has no start revision: such a watch hears of deletions at
    /// once, and one with a revision of the past up to 100 ms later.
    pub(crate) fn watch(self: &Arc<Self>, key: Vec<u8>) -> KeyWatch {
        let (heard, news) = mpsc::unbounded_channel();
        let mut inner = lock(&self.inner);
        inner.last += 1;
        let id = inner.last;
        let create = Watching::Create(WatchCreateRequest { key, filters: vec![NO_PUT], watch_id: id });
        // The task of an earlier stream may have ended with its runtime.
        let open = inner.requests.clone().filter(|requests| !requests.is_closed());
        let mut receiver = None;
        let requests = open.unwrap_or_else(|| {
            let (requests, of_it) = mpsc::unbounded_channel();
            receiver = Some(of_it);
            inner.stream += 1;
            inner.requests = Some(requests.clone());
            requests
        });
        let stream = inner.stream;
        inner.heard.insert(id, (stream, heard));
        drop(inner);
        if let Some(receiver) = receiver {
            tokio::spawn(run(Arc::clone(&self.client), Weak::clone(&self.me), stream, receiver));
        }
        let _ = requests.send(WatchRequest { request: Some(create) });
        KeyWatch { watches: Arc::clone(self), id, news }
    }

    /// Passes an answer on. Returns `false` if it ends the stream: of a watch that is refused,
    /// newer servers do not say the number.
    fn heard(&self, answer: &WatchResponse) -> bool {
        let mut inner = lock(&self.inner);
        if answer.canceled {
            // Its channel ends.
            let gone = inner.heard.remove(&answer.watch_id);
            drop(inner);
            drop(gone);
            return answer.watch_id >= 0 && !answer.created;
        }
        let Some((_, heard)) = inner.heard.get(&answer.watch_id).cloned() else { return true };
        drop(inner);
        if answer.created {
            let _ = heard.send(News::Begun);
        }
        let deleted = answer.events.iter().filter(|event| event.kind == 1);
        for kv in deleted.filter_map(|event| event.kv.as_ref()) {
            let _ = heard.send(News::Deleted(kv.mod_revision));
        }
        true
    }

    /// Ends the watches of a stream that has ended.
    fn end(&self, stream: u64) {
        let mut inner = lock(&self.inner);
        let requests = if inner.stream == stream { inner.requests.take() } else { None };
        let gone: Vec<_> = inner.heard.extract_if(|_, (of, _)| *of == stream).collect();
        drop(inner);
        drop((requests, gone));
    }
}

/// Resolves when the server does not answer, or is behind the others: its watches hear of nothing.
async fn is_behind(client: &Client, server: usize, watches: &Weak<Watches>) {
    loop {
        tokio::time::sleep(CHECK).await;
        let is_heard = watches.upgrade().is_some_and(|watches| !lock(&watches.inner).heard.is_empty());
        if client.has_several() && is_heard && !client.is_current(server).await {
            return;
        }
    }
}

/// Runs a stream of watches until it ends, or until nobody can watch any more.
async fn run(
    client: Arc<Client>,
    watches: Weak<Watches>,
    stream: u64,
    requests: mpsc::UnboundedReceiver<WatchRequest>,
) {
    let requests = UnboundedReceiverStream::new(requests);
    let opened = timeout(BEGIN, client.stream::<_, WatchResponse>(WATCH, requests)).await;
    if let Ok(Ok((server, mut answers))) = opened {
        let mut behind = pin!(is_behind(&client, server, &watches));
        loop {
            let answer = tokio::select! {
                answer = answers.next() => answer,
                () = &mut behind => break,
            };
            let Some(Ok(answer)) = answer else { break };
            match watches.upgrade() {
                Some(watches) if watches.heard(&answer) => {}
                // The user may have lost its rights, or its token.
                Some(_) => {
                    client.forget_token();
                    break;
                }
                None => return,
            }
        }
        client.pass_over(server);
    }
    if let Some(watches) = watches.upgrade() {
        watches.end(stream);
    }
}
