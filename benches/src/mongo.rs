//! MongoDB's side of a measurement: the change that stands for a PING, and the count of commands.

use mongodb::bson::{Document, doc};
use mongodb::options::{ClientOptions, WriteConcern};
use mongodb::{Client, Collection};

/// Documents that are changed in turn: as many as `latency` has keys.
const DOCUMENTS: i32 = 1000;

/// Commands that are counted. Others are the driver's own, or those of other members.
const COUNTED: [&str; 8] = [
    "abortTransaction",
    "aggregate",
    "commitTransaction",
    "delete",
    "find",
    "findAndModify",
    "getMore",
    "update",
];

#[expect(clippy::needless_pass_by_value, reason = "for `map_err`")]
fn said(error: mongodb::error::Error) -> String {
    format!("MongoDB: {error}")
}

/// A client that changes documents, and asks for the server's counters.
#[derive(Debug)]
pub(crate) struct Changes {
    documents: Collection<Document>,
    client: Client,
    next: i32,
}

impl Changes {
    pub(crate) async fn connect(url: &str) -> Result<Self, String> {
        let mut options = ClientOptions::parse(url).await.map_err(said)?;
        options.app_name = Some("lock-bench".to_owned());
        // A retry would cost the server a second write.
        options.retry_writes = Some(false);
        let mut concern = WriteConcern::majority();
        concern.journal = Some(true);
        options.write_concern = Some(concern);
        let client = Client::with_options(options).map_err(said)?;
        let database = client.default_database().ok_or("the URL names no database")?;
        let documents = database.collection::<Document>("lock_bench_ping");
        if documents.estimated_document_count().await.map_err(said)? == 0 {
            let all = (0..DOCUMENTS).map(|id| doc! { "_id": id, "n": 0_i64 });
            // Several meters may do that at once.
            let _ = documents.insert_many(all).await;
        }
        Ok(Self { documents, client, next: 0 })
    }

    /// Changes one document, and waits until a majority has that in its journal.
    pub(crate) async fn change(&mut self) -> Result<(), String> {
        self.next = (self.next + 1) % DOCUMENTS;
        let change =
            self.documents.find_one_and_update(doc! { "_id": self.next }, doc! { "$inc": { "n": 1 } });
        change.await.map_err(said)?.map(drop).ok_or_else(|| "MongoDB: no such document".to_owned())
    }

    /// Returns the number of commands so far.
    pub(crate) async fn commands(&mut self) -> Result<u64, String> {
        let status = self.client.database("admin").run_command(doc! { "serverStatus": 1 }).await;
        let status = status.map_err(said)?;
        let commands = status.get_document("metrics").and_then(|metrics| metrics.get_document("commands"));
        let commands = commands.map_err(|error| format!("serverStatus: {error}"))?;
        let total = |name: &&str| commands.get_document(name).and_then(|of| of.get_i64("total")).ok();
        Ok(COUNTED.iter().filter_map(total).map(i64::unsigned_abs).sum())
    }
}
