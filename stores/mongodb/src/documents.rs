//! The documents, and the commands on them.

use std::borrow::Cow;
use std::time::Duration;

use lock_core::store::ServerTime;
use lock_store_records::rows::{Found, Swap, message, text_of, time};
use lock_store_records::{Class, Event, Name, Row};
use mongodb::bson::{Bson, Document, doc};

/// The collection. Times are microseconds since the Unix epoch by the primary's clock.
///
/// - `_id` is the class, which is `lock`, `semaphore` or `latch`, a colon, the prefix and the key.
/// - `version` is a random number of the change that wrote the document, 32 hexadecimal digits.
/// - `token` is the largest fencing token that was granted.
/// - After `until`, nothing of the record counts any more. The document is kept for its token until
///   `kept_until`.
/// - `record` is JSON: holders, waiters, permits.
/// - `changed_at` is when the document was changed. Each change is later than the one before.
/// - `withdrawn_at` is when a request was withdrawn last.
/// - `listeners` are the processes that have to hear of changes, and until when.
/// - `told` is what the last change has told others.
pub(crate) const COLLECTION: &str = "lock_records";

/// Number of documents of any length that fit into a command or an answer, of 16 MB.
pub(crate) const TOGETHER: usize = 60;

/// Number of documents in a page of a scan or a sweep.
pub(crate) const PAGE: usize = 500;

pub(crate) fn id(name: &Name) -> String {
    format!("{}:{}", text_of(name.class), name.text)
}

/// Returns the time of the primary, with a resolution of a millisecond, as an expression. It is
/// that of the beginning of the command.
pub(crate) fn clock() -> Document {
    doc! { "$multiply": [{ "$toLong": "$$NOW" }, 1000_i64] }
}

fn number(field: &str) -> Document {
    doc! { "$ifNull": [format!("${field}"), 0_i64] }
}

pub(crate) fn literal(text: &str) -> Document {
    doc! { "$literal": text }
}

/// Returns the fields of an answer. They leave out a record of the version that the caller has.
fn fields(known: Option<&str>) -> Document {
    let record: Bson = match known {
        Some(known) => doc! { "$cond": [{ "$eq": ["$version", known] }, "$$REMOVE", "$record"] }.into(),
        None => 1.into(),
    };
    doc! {
        "version": 1, "token": 1, "until": 1, "kept_until": 1, "record": record, "changed_at": 1, "now": clock(),
    }
}

/// A document as it was read.
pub(crate) struct Read {
    pub(crate) found: Found,
    pub(crate) now: ServerTime,
    pub(crate) changed_at: i64,
}

impl Read {
    /// Reads a document; fails for one that another program has written.
    pub(crate) fn of(document: &Document) -> Result<Self, mongodb::bson::error::Error> {
        let row = Row {
            token: document.get_i64("token")?,
            until: document.get_i64("until")?,
            kept_until: document.get_i64("kept_until")?,
            // An answer leaves it out if the caller has it.
            text: document.get_str("record").unwrap_or_default().to_owned(),
        };
        Ok(Self {
            found: Found { version: document.get_str("version")?.to_owned(), row },
            now: time(document.get_i64("now")?),
            changed_at: document.get_i64("changed_at")?,
        })
    }
}

/// Returns the command that reads one document as a write would: it waits until what it has read
/// is kept by a majority.
pub(crate) fn look(id: &str) -> Document {
    doc! {
        "findAndModify": COLLECTION,
        "query": { "_id": id },
        "update": [{ "$replaceWith": "$$ROOT" }],
        "new": true,
        "fields": fields(None),
    }
}

/// Returns the command that writes a document, if it is the expected one, and reads it.
pub(crate) fn swap(swap: &Swap<'_>, here: Option<&str>) -> Document {
    let Found { version, .. } = swap.after;
    let is_over = || {
        doc! { "$and": [
            { "$lte": [number("until"), clock()] },
            { "$lte": [number("token"), swap.largest] },
            // A request that a withdrawal has overtaken.
            { "$lte": [number("withdrawn_at"), clock()] },
        ] }
    };
    let is_expected = swap.version.map_or_else(is_over, |version| doc! { "$eq": ["$version", version] });
    let (from, to) = swap.within;
    let in_time = [doc! { "$gte": [clock(), from] }, doc! { "$lte": [clock(), to] }];
    let [begins, ends] = in_time;
    let condition = doc! { "$and": [begins, ends, { "$or": [is_new(), is_ours()] }, is_expected] };
    let after =
        changed(swap.after, &Told { name: swap.name, events: swap.events.into(), here }, swap.settles, None);
    let otherwise = doc! { "$cond": [is_new(), nothing(), "$$ROOT"] };
    doc! {
        "findAndModify": COLLECTION,
        "query": { "_id": id(swap.name) },
        "update": [{ "$replaceWith": { "$cond": [condition, after, otherwise] } }],
        "upsert": swap.version.is_none(),
        "new": true,
        "fields": fields(Some(version)),
    }
}

/// Whether an upsert inserts the document.
pub(crate) fn is_new() -> Document {
    doc! { "$eq": ["$$ROOT", { "_id": "$_id" }] }
}

/// Whether this program has written a document, as far as its types say. One of another program is
/// left alone.
fn is_ours() -> Document {
    let fields = ["version", "token", "until", "kept_until", "record", "changed_at"];
    let types = fields.map(|field| doc! { "$type": format!("${field}") });
    doc! { "$eq": [types.to_vec(), ["string", "long", "long", "long", "string", "long"]] }
}

/// Returns a document about which nothing is known: a refused request leaves it.
fn nothing() -> Document {
    let (zero, text) = (0_i64, literal("{}"));
    doc! { "_id": "$_id", "version": "", "token": zero, "until": zero, "kept_until": zero, "record": text, "changed_at": zero }
}

/// The events of a step on one document.
pub(crate) struct Told<'a> {
    pub(crate) name: &'a Name,
    pub(crate) events: Cow<'a, [Event]>,
    /// Where this process listens: it has heard.
    pub(crate) here: Option<&'a str>,
}

impl Told<'_> {
    /// Returns the text for other processes as an expression: their ids, the time, and a message
    /// for each event. Nothing if nobody else listens.
    fn text(&self, changed_at: &Document) -> Bson {
        let mut ids: Vec<&str> = self.events.iter().filter_map(|event| event.to.as_deref()).collect();
        ids.sort_unstable();
        ids.dedup();
        ids.retain(|id| Some(*id) != self.here);
        let is_public = self.events.iter().any(|event| event.to.is_none());
        if ids.is_empty() && !is_public {
            return "$$REMOVE".into();
        }
        let lines: Vec<String> = self.events.iter().map(|event| message(self.name, &event.what)).collect();
        let registered: Bson = match is_public {
            true => {
                let alive = doc! { "$and": [
                    { "$gt": ["$$this.until", clock()] },
                    { "$ne": ["$$this.id", self.here.unwrap_or_default()] },
                ] };
                let listeners = doc! { "$filter": {
                    "input": { "$ifNull": ["$listeners", []] }, "as": "this", "cond": alive,
                } };
                doc! { "$map": { "input": listeners, "as": "this", "in": "$$this.id" } }.into()
            }
            false => Vec::<Bson>::new().into(),
        };
        let joined = doc! { "$reduce": {
            "input": "$$ids", "initialValue": "", "in": { "$concat": ["$$value", "$$this", " "] },
        } };
        let text = doc! { "$concat": [
            joined, "\n", { "$toString": changed_at.clone() }, "\n", literal(&lines.join("\n")),
        ] };
        doc! { "$let": {
            "vars": { "ids": { "$concatArrays": [ids, registered] } },
            "in": { "$cond": [{ "$eq": ["$$ids", []] }, "$$REMOVE", text] },
        } }
        .into()
    }
}

/// Returns the document after a change as an expression. `at` is the time of the change, if the
/// caller has it.
fn changed(after: &Found, told: &Told<'_>, settles: bool, at: Option<i64>) -> Document {
    let Found { version, row } = after;
    let changed_at = match at {
        Some(at) => doc! { "$literal": at },
        None => doc! { "$max": [clock(), { "$add": [number("changed_at"), 1_i64] }] },
    };
    let withdrawn_at: Bson = if settles { clock().into() } else { "$withdrawn_at".into() };
    doc! {
        "_id": "$_id",
        "version": version,
        "token": { "$max": [number("token"), row.token] },
        "until": row.until,
        "kept_until": { "$max": [number("kept_until"), row.kept_until] },
        "record": literal(&row.text),
        "told": told.text(&changed_at),
        "changed_at": changed_at,
        "withdrawn_at": withdrawn_at,
        "listeners": "$listeners",
    }
}

/// A document to write together with others.
pub(crate) struct Write<'a> {
    /// The version that it has; `None` if it is absent.
    pub(crate) version: Option<&'a str>,
    pub(crate) after: Found,
    pub(crate) told: Told<'a>,
}

/// Returns the command that writes those of these documents that are the expected ones, by the
/// primary's clock not later than `latest`.
pub(crate) fn write(writes: &[Write<'_>], settles: bool, at: i64, latest: Option<i64>) -> Document {
    let updates = writes.iter().map(|write| {
        let id = id(write.told.name);
        let after = changed(&write.after, &write.told, settles, Some(at));
        let mut query = match write.version {
            Some(version) => doc! { "_id": id, "version": version },
            // If it is there, it has another version, and the insert fails.
            None => doc! { "_id": id, "version": &write.after.version },
        };
        // An upsert can have no such condition.
        if let Some(latest) = latest.filter(|_| write.version.is_some()) {
            query.insert("$expr", doc! { "$lte": [clock(), latest] });
        }
        doc! { "q": query, "u": [{ "$replaceWith": after }], "upsert": write.version.is_none() }
    });
    doc! { "update": COLLECTION, "updates": updates.collect::<Vec<_>>(), "ordered": false }
}

/// Returns the command that reads documents.
pub(crate) fn find(ids: &[String]) -> Document {
    let most = i64::try_from(ids.len()).unwrap_or(i64::MAX);
    doc! {
        "find": COLLECTION, "filter": { "_id": { "$in": ids } }, "projection": fields(None),
        "batchSize": most, "singleBatch": true,
    }
}

/// Returns the command that reads the versions of documents.
pub(crate) fn versions(ids: &[String]) -> Document {
    let mut find = find(ids);
    find.insert("projection", doc! { "version": 1 });
    find
}

/// Returns the command that reads a page of locks whose name begins with `prefix`, after a name.
pub(crate) fn page(prefix: &str, after: Option<&str>) -> Document {
    let class = text_of(Class::Lock);
    let first = match after {
        Some(after) => doc! { "$gt": format!("{class}:{after}") },
        None => doc! { "$gte": format!("{class}:{prefix}") },
    };
    let mut range = first;
    // No key has a larger character behind the prefix.
    range.insert("$lte", format!("{class}:{prefix}{}", char::MAX));
    listed(doc! { "_id": range }, fields(None))
}

/// Returns the command that reads a page of all names, and whether each may be removed.
pub(crate) fn over(after: &str) -> Document {
    listed(doc! { "_id": { "$gt": after } }, doc! { "over": is_over() })
}

fn listed(filter: Document, projection: Document) -> Document {
    let most = i32::try_from(PAGE).unwrap_or(i32::MAX);
    doc! {
        "find": COLLECTION, "filter": filter, "projection": projection, "sort": { "_id": 1 },
        "limit": most, "batchSize": most, "singleBatch": true,
    }
}

/// Whether nothing of a document is needed any more. Its token is below the clock, from which the
/// next one is made.
fn is_over() -> Document {
    let before = |field: &str| doc! { "$lt": [format!("${field}"), clock()] };
    doc! { "$and": [is_ours(), before("until"), before("kept_until"), before("token"), before("withdrawn_at")] }
}

/// Returns the command that removes those of these documents that are still over.
pub(crate) fn remove(ids: &[String]) -> Document {
    let filter = doc! { "_id": { "$in": ids }, "$expr": is_over() };
    doc! { "delete": COLLECTION, "deletes": [{ "q": filter, "limit": 0 }], "ordered": false }
}

/// Returns the command that adds the listener `here` to these documents for `life` microseconds.
pub(crate) fn register(names: &[Name], here: &str, life: i64) -> Document {
    let end = || doc! { "$add": [clock(), life] };
    let alive = doc! { "$and": [{ "$gt": ["$$this.until", clock()] }, { "$ne": ["$$this.id", here] }] };
    let others =
        doc! { "$filter": { "input": { "$ifNull": ["$listeners", []] }, "as": "this", "cond": alive } };
    let all = doc! { "$concatArrays": [others, [{ "id": here, "until": end() }]] };
    let set = doc! {
        "version": { "$ifNull": ["$version", ""] },
        "token": number("token"),
        "until": number("until"),
        "kept_until": { "$max": [number("kept_until"), end()] },
        "record": { "$ifNull": ["$record", literal("{}")] },
        "changed_at": number("changed_at"),
        "listeners": all,
    };
    let merged = doc! { "$mergeObjects": ["$$ROOT", set] };
    let after = doc! { "$cond": [{ "$or": [is_new(), is_ours()] }, merged, "$$ROOT"] };
    let update = [doc! { "$replaceWith": after }].to_vec();
    let updates =
        names.iter().map(|name| doc! { "q": { "_id": id(name) }, "u": update.clone(), "upsert": true });
    doc! { "update": COLLECTION, "updates": updates.collect::<Vec<_>>(), "ordered": false }
}

/// Returns the command that opens a change stream of what others tell the listener `here`.
pub(crate) fn stream(here: &str) -> Document {
    let told = || doc! { "$regex": here };
    let pipeline = [
        doc! { "$changeStream": {} },
        doc! { "$match": { "$or": [{ "updateDescription.updatedFields.told": told() }, { "fullDocument.told": told() }] } },
        doc! { "$project": { "updateDescription.updatedFields.told": 1, "fullDocument.told": 1 } },
    ];
    doc! { "aggregate": COLLECTION, "pipeline": pipeline.to_vec(), "cursor": {} }
}

/// Returns the command that waits for more of a change stream, for `wait` at most.
pub(crate) fn more(cursor: i64, wait: Duration) -> Document {
    let wait = i64::try_from(wait.as_millis()).unwrap_or(i64::MAX);
    doc! { "getMore": cursor, "collection": COLLECTION, "maxTimeMS": wait }
}

/// Returns the documents of an answer to `find`.
pub(crate) fn batch_of(answer: &Document) -> Vec<Document> {
    let cursor = answer.get_document("cursor").and_then(|cursor| cursor.get_array("firstBatch"));
    let batch = cursor.map(Vec::as_slice).unwrap_or_default();
    batch.iter().filter_map(|document| document.as_document().cloned()).collect()
}
