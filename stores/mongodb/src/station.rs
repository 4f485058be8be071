//! [`Stream`]: how a manager hears of the steps of others, by a change stream.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use lock_core::internal::sync::Mutex;
use lock_core::store::{BoxFuture, StoreError, StoreErrorKind};
use lock_store_records::rows::{Arrived, LIFE, Station, Wire, read_message, time};
use lock_store_records::{ListenerId, Listeners, Name};
use mongodb::ClientSession;
use mongodb::bson::Document;
use tokio::time::timeout;

use crate::classify::{Fault, failed};
use crate::documents;
use crate::server::{Bounds, Connected, Shared};

/// Time for an answer.
const ANSWER: Duration = Duration::from_secs(5);

/// Time after which the server answers a question that has no news.
const AWAIT: Duration = Duration::from_secs(1);

/// A change stream with what others tell this process.
pub(crate) struct Stream {
    id: ListenerId,
    server: Shared,
}

pub(crate) fn station(id: ListenerId, server: &Shared, listeners: &Arc<Mutex<Listeners>>) -> Station<Stream> {
    let wire = Stream { id: Arc::clone(&id), server: Arc::clone(server) };
    Station::new(id, wire, listeners)
}

/// The server's cursor of a change stream. The driver's own would be closed in a task, which panics
/// if the runtime ends meanwhile. It also would not notice that its connection has died.
pub(crate) struct Cursor {
    connected: Arc<Connected>,
    id: i64,
    news: VecDeque<Document>,
    /// The session that it belongs to; `None` while it is asked for news.
    session: Option<ClientSession>,
    asks: Option<BoxFuture<(ClientSession, Result<Document, Fault>)>>,
}

impl Cursor {
    async fn open(connected: Arc<Connected>, here: &str) -> Result<Self, Fault> {
        let mut session = connected.session().await.map_err(failed)?;
        let open = connected.database.run_command(documents::stream(here)).session(&mut session);
        let answer = open.await.map_err(failed)?;
        let mut cursor = Self { connected, id: 0, news: VecDeque::new(), session: Some(session), asks: None };
        cursor.take("firstBatch", &answer);
        Ok(cursor)
    }

    /// Takes the news of an answer.
    fn take(&mut self, batch: &str, answer: &Document) {
        let Ok(cursor) = answer.get_document("cursor") else { return };
        self.id = cursor.get_i64("id").unwrap_or_default();
        let news = cursor.get_array(batch).map(Vec::as_slice).unwrap_or_default();
        self.news.extend(news.iter().filter_map(|event| event.as_document().cloned()));
    }

    /// Returns the next change; `None` if the server has ended the stream. Cancel safe.
    async fn next(&mut self) -> Result<Option<Document>, Fault> {
        loop {
            if let Some(event) = self.news.pop_front() {
                return Ok(Some(event));
            }
            // The collection has been dropped.
            if self.id == 0 {
                return Ok(None);
            }
            if let Some(mut session) = self.session.take() {
                let (database, more) = (self.connected.database.clone(), documents::more(self.id, AWAIT));
                self.asks = Some(Box::pin(async move {
                    let more =
                        timeout(AWAIT + ANSWER, database.run_command(more).session(&mut session)).await;
                    let silent = || StoreError::new(StoreErrorKind::NotReady, "no answer").into();
                    (session, more.map_err(|_| silent()).and_then(|answer| answer.map_err(failed)))
                }));
            }
            let Some(asks) = &mut self.asks else { return Ok(None) };
            let (session, answer) = asks.await;
            self.asks = None;
            let answer = answer?;
            self.session = Some(session);
            self.take("nextBatch", &answer);
        }
    }
}

impl Wire for Stream {
    type Stream = Cursor;
    type Error = Fault;

    async fn connect(&self) -> Result<Cursor, Fault> {
        Cursor::open(self.server.connected().await?, &self.id).await
    }

    async fn next(&self, cursor: &mut Cursor) -> Result<Option<Arrived>, Fault> {
        Ok(cursor.next().await?.map(|event| read(&event)))
    }

    /// A server that is silent is noticed when it is asked for news.
    async fn check(&self, _: &mut Self::Stream) -> Result<(), Fault> {
        Ok(())
    }

    async fn register(&self, names: &[Name]) -> Result<(), Fault> {
        let life = i64::try_from(LIFE.as_micros()).unwrap_or(0);
        let command = documents::register(names, &self.id, life);
        Bounds::new(ANSWER).write(&self.server, command).await.map(drop)
    }
}

/// Reads what a step has told others.
fn read(event: &Document) -> Arrived {
    let updated = event.get_document("updateDescription").and_then(|it| it.get_document("updatedFields"));
    let told = updated.or_else(|_| event.get_document("fullDocument")).and_then(|it| it.get_str("told"));
    let Ok(told) = told else { return Arrived::Anything };
    let mut lines = told.lines().skip(1);
    let at = lines.next().and_then(|at| at.parse().ok()).map(time);
    let events = lines.map(|line| read_message(line).zip(at).map(|((name, event), at)| (name, event, at)));
    events.collect::<Option<_>>().map_or(Arrived::Anything, Arrived::Events)
}

#[cfg(test)]
mod tests {
    use lock_store_records::rows::message;
    use lock_store_records::{Class, What};
    use mongodb::bson::doc;

    use super::*;

    #[test]
    fn a_change_tells_its_events_and_anything_else_may_be_anything() {
        let name = Name { class: Class::Lock, text: "a b\n".into() };
        let told =
            format!("id1 id2 \n17\n{}\n{}", message(&name, &What::Freed), message(&name, &What::Readable));
        let Arrived::Events(events) = read(&doc! { "fullDocument": { "told": &told } }) else {
            panic!("it is read")
        };
        let events: Vec<_> = events.into_iter().map(|(of, event, at)| (of, event.what, at)).collect();
        assert_eq!(events, [(name.clone(), What::Freed, time(17)), (name, What::Readable, time(17))]);
        let updated = doc! { "updateDescription": { "updatedFields": { "told": told } } };
        assert!(matches!(read(&updated), Arrived::Events(events) if events.len() == 2));
        for other in [doc! {}, doc! { "fullDocument": { "told": "id1 \nnever\n*" } }] {
            assert_eq!(read(&other), Arrived::Anything, "{other}");
        }
    }
}
