//! [`Stream`]: how a manager hears of the steps of others, by a change stream.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::future::{Either, select};
use lock_core::internal::sync::Mutex;
use lock_store_records::rows::{Arrived, LIFE, Station, Wire, read_message, time};
use lock_store_records::{ListenerId, Listeners, Name};
use mongodb::bson::Document;
use mongodb::change_stream::ChangeStream;

use crate::classify::{During, Fault, fault};
use crate::documents::{self, COLLECTION};
use crate::server::{Bounds, Connected, Shared};

/// Time for a registration.
const ANSWER: Duration = Duration::from_secs(5);

/// A change stream with what others tell this process.
pub(crate) struct Stream {
    id: ListenerId,
    server: Shared,
}

pub(crate) fn station(id: ListenerId, server: &Shared, listeners: &Arc<Mutex<Listeners>>) -> Station<Stream> {
    let wire = Stream { id: Arc::clone(&id), server: Arc::clone(server) };
    Station::new(id, wire, listeners)
}

impl Wire for Stream {
    type Stream = (ChangeStream<Document>, Arc<Connected>);
    type Error = Fault;

    async fn connect(&self) -> Result<Self::Stream, Fault> {
        let connected = self.server.connected().await?;
        let collection = connected.database.collection::<Document>(COLLECTION);
        let watch = collection.watch().pipeline(documents::stream(&self.id));
        let stream = watch.await.map_err(|error| fault(&error, During::Work))?;
        Ok((stream.with_type(), connected))
    }

    async fn next(&self, (stream, connected): &mut Self::Stream) -> Result<Option<Arrived>, Fault> {
        let mut is_replaced = connected.is_replaced.subscribe();
        let replaced = pin!(is_replaced.wait_for(|is_replaced| *is_replaced));
        // A stream that ends was of a collection that has been dropped.
        match select(stream.next(), replaced).await {
            Either::Left((Some(event), _)) => {
                Ok(Some(read(&event.map_err(|error| fault(&error, During::Work))?)))
            }
            Either::Left((None, _)) | Either::Right(_) => Ok(None),
        }
    }

    /// The driver ends the stream of a server that does not answer its heartbeats.
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
