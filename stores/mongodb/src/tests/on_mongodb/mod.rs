use std::sync::LazyLock;

use lock_store_conformance::{Subject, conformance};
use lock_test_servers::MongoDbServer;
use lock_test_servers::mongodb::{Document, doc};
use mongodb::Client;

use super::*;
use crate::documents::COLLECTION;

mod cuts;
mod failures;
mod foreign;
mod groups;
mod late;
mod majority;
mod refusals;
mod waking;

static SERVER: LazyLock<MongoDbServer> = LazyLock::new(MongoDbServer::start);

async fn subject() -> Subject {
    let prefix = new_prefix();
    Subject::new(store(&SERVER.url(), &prefix), store(&SERVER.url(), &prefix))
}

conformance!(subject);

/// Starts a server that fails when told to.
fn start_with_failures() -> MongoDbServer {
    let settings = ["setParameter=enableTestCommands=1", "setParameter=transactionLifetimeLimitSeconds=1"];
    MongoDbServer::try_start_in(&std::env::temp_dir(), &settings).unwrap()
}

/// Runs a command in the database with the records.
#[track_caller]
fn run(server: &MongoDbServer, mut command: Document) -> Document {
    command.insert("$db", "locks");
    server.command(command)
}

/// Changes the documents of these names of locks by hand.
#[track_caller]
fn change(server: &MongoDbServer, id: &str, update: Document) {
    let update = doc! { "q": { "_id": format!("lock:{id}") }, "u": update };
    let done = run(server, doc! { "update": COLLECTION, "updates": [update] });
    assert_eq!(done.get_i32("n").unwrap(), 1, "{done}");
}

/// Returns the document of a lock as it is.
#[track_caller]
fn document(server: &MongoDbServer, id: &str) -> Document {
    let found = run(server, doc! { "find": COLLECTION, "filter": { "_id": format!("lock:{id}") } });
    let batch = found.get_document("cursor").and_then(|cursor| cursor.get_array("firstBatch")).unwrap();
    batch[0].as_document().unwrap().clone()
}

/// Connects as another program.
async fn stranger(server: &MongoDbServer) -> Client {
    Client::with_uri_str(server.url()).await.unwrap()
}
