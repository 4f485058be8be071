//! The collections, and the commands on them.

use mongodb::bson::{Bson, Document, doc};

use crate::documents::clock;

/// A document for each stock, whose `_id` is its name: `segments` take part in sales, 0 to
/// `segments - 1`; every change of their number raises `epoch`. `initial` and `restocked` are the
/// units that were put in, and `forgotten` those that deleted records have sold. A transaction that
/// has to be alone raises `locked`.
pub(super) const STOCKS: &str = "lock_stock";

/// A document for each segment that there ever was. Its `_id` has `stock` and `segment`; `active`,
/// `available`, `held`, `sold`, and `fence`, the largest token that has sold here.
pub(super) const SEGMENTS: &str = "lock_stock_segment";

/// A document for each operation. Its `_id` has `stock` and `operation`; `state`, `reserved`,
/// `quantity`, `parts`, `deadline`, and `kept_until`, which is null while units are held.
pub(super) const OPERATIONS: &str = "lock_stock_operation";

/// Returns the command that makes indexes by which what is over is found.
pub(super) fn indexes() -> Document {
    let index = |name: &str, fields: Document| doc! { "name": name, "key": fields };
    let held = index("held", doc! { "_id.stock": 1, "state": 1, "deadline": 1 });
    let over = index("over", doc! { "_id.stock": 1, "kept_until": 1 });
    // One member that is away does not keep the others from it.
    doc! { "createIndexes": OPERATIONS, "indexes": [held, over], "commitQuorum": "majority" }
}

pub(super) fn segment_id(stock: &str, segment: u32) -> Document {
    doc! { "stock": stock, "segment": i64::from(segment) }
}

/// Returns the range of the ids of a stock's segments.
fn segment_ids(stock: &str) -> Document {
    doc! { "$gte": segment_id(stock, 0), "$lte": segment_id(stock, u32::MAX) }
}

pub(super) fn operation_id(stock: &str, operation: &str) -> Document {
    doc! { "stock": stock, "operation": operation }
}

/// Returns the time after `micros`, as an expression.
pub(super) fn after(micros: Option<i64>) -> Bson {
    micros.map_or(Bson::Null, |micros| doc! { "$add": [clock(), micros] }.into())
}

/// Returns the condition that the time is at most `latest`.
pub(super) fn until(latest: i64) -> Document {
    doc! { "$lte": [clock(), latest] }
}

/// Returns the condition for records whose retention is over. An index has those.
pub(super) fn over(filter: Document) -> Document {
    doc! { "$and": [filter, { "kept_until": { "$gt": 0_i64 } }, { "$expr": { "$lte": ["$kept_until", clock()] } }] }
}

/// Returns the condition for reservations of a stock that are over.
pub(super) fn overdue(stock: &str) -> Document {
    let is_over = doc! { "$lt": ["$deadline", clock()] };
    doc! { "_id.stock": stock, "state": "H", "$expr": is_over }
}

pub(super) fn find(
    collection: &str,
    filter: Document,
    fields: Document,
    sort: Document,
    most: i64,
) -> Document {
    doc! {
        "find": collection, "filter": filter, "projection": fields, "sort": sort,
        "limit": most, "batchSize": most, "singleBatch": true,
    }
}

/// Returns the command that finds one document.
pub(super) fn find_one(collection: &str, id: impl Into<Bson>, fields: Document) -> Document {
    find(collection, doc! { "_id": id.into() }, fields, doc! {}, 1)
}

/// Returns the command that finds all segments of a stock in ascending order.
pub(super) fn segments(stock: &str) -> Document {
    let fields = doc! { "_id": 0, "active": 1, "available": 1 };
    find(SEGMENTS, doc! { "_id": segment_ids(stock) }, fields, doc! { "_id": 1 }, i64::from(i32::MAX))
}

/// Returns the command that makes these updates.
pub(super) fn update(collection: &str, updates: Vec<Document>) -> Document {
    doc! { "update": collection, "updates": updates }
}

/// Returns the command that changes one document, if it fulfils a condition.
pub(super) fn update_one(collection: &str, query: Document, change: impl Into<Bson>) -> Document {
    update(collection, vec![doc! { "q": query, "u": change.into() }])
}

/// Returns the command that changes all documents that fulfil a condition.
pub(super) fn update_all(collection: &str, query: Document, set: Document) -> Document {
    update(collection, vec![doc! { "q": query, "u": [{ "$set": set }], "multi": true }])
}

/// Returns the update that makes segments below a number active, and the others retired.
pub(super) fn activate(stock: &str, segments: u32) -> Document {
    let active = doc! { "$lt": ["$_id.segment", i64::from(segments)] };
    update_all(SEGMENTS, doc! { "_id": segment_ids(stock) }, doc! { "active": active })
}

/// Returns the command that reads a stock, with documents of others, at one moment.
fn read(
    stock: &str,
    others: impl IntoIterator<Item = (&'static str, &'static str, Vec<Document>)>,
) -> Document {
    let mut pipeline = vec![doc! { "$match": { "_id": stock } }];
    for (name, from, of) in others {
        pipeline.push(doc! { "$lookup": { "from": from, "pipeline": of, "as": name } });
    }
    pipeline.push(doc! { "$set": { "now": clock() } });
    doc! { "aggregate": STOCKS, "pipeline": pipeline, "cursor": {} }
}

fn read_segments(stock: &str, filter: Document) -> (&'static str, &'static str, Vec<Document>) {
    let filter = doc! { "$match": { "$and": [{ "_id": segment_ids(stock) }, filter] } };
    let fields =
        doc! { "_id": 0, "segment": "$_id.segment", "active": 1, "available": 1, "held": 1, "sold": 1 };
    ("parts", SEGMENTS, vec![filter, doc! { "$sort": { "_id": 1 } }, doc! { "$project": fields }])
}

fn read_record(stock: &str, operation: &str) -> (&'static str, &'static str, Vec<Document>) {
    ("record", OPERATIONS, vec![doc! { "$match": { "_id": operation_id(stock, operation) } }])
}

/// Returns the command that reads a stock and one record.
pub(super) fn record(stock: &str, operation: &str) -> Document {
    read(stock, [read_record(stock, operation)])
}

/// Returns the command that reads active segments, one record, and a reservation that is over.
pub(super) fn look(stock: &str, operation: &str) -> Document {
    let overdue =
        vec![doc! { "$match": overdue(stock) }, doc! { "$limit": 1 }, doc! { "$project": { "_id": 1 } }];
    let segments = read_segments(stock, doc! { "active": true });
    read(stock, [segments, read_record(stock, operation), ("overdue", OPERATIONS, overdue)])
}

/// Returns the command that reads all segments, and the sums of all records.
pub(super) fn audit(stock: &str, with_records: bool) -> Document {
    let sum = |state: &str| doc! { "$sum": { "$cond": [{ "$eq": ["$state", state] }, "$quantity", 0_i64] } };
    let sums = doc! { "$group": { "_id": null, "held": sum("H"), "sold": sum("S") } };
    let sums = ("sums", OPERATIONS, vec![doc! { "$match": { "_id.stock": stock } }, sums]);
    read(stock, [read_segments(stock, doc! {})].into_iter().chain(with_records.then_some(sums)))
}
