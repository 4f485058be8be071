//! The steps of a call on a stock, as commands.
//!
//! A transaction reads a snapshot, and fails if another one has changed a document that it changes.
//! A sale from one segment depends on that segment, and changes it. The end of an operation reads
//! the number of segments, to find where units go, and changes that segment. A resize that retires
//! it changes it, too, so one of them fails. Others that depend on the number of segments change
//! the stock's document first, as a resize does. Two calls on one operation, and a sweep that ends
//! or deletes its record, change or make the same document.

use std::fmt;
use std::time::Duration;

use lock_core::internal::clock::Clock;
use lock_core::store::kit::Backoff;
use lock_core::store::stock::{Audit, MAX_QUANTITY, OperationId, Part, SegmentCounts, Snapshot};
use lock_core::store::{StoreError, StoreErrorKind};
use lock_store_records::stock::{
    Calls, Columns, Ending, Look, Note, Over, Scope, Shift, Stock, Terms, Units, Which, signed, unsigned,
};
use mongodb::bson::{Document, doc};

use super::call::{Call, Open};
use super::commands::{self, OPERATIONS, SEGMENTS, STOCKS, find, find_one, update, update_all, update_one};
use crate::classify::Fault;
use crate::documents::{clock, is_new, literal};

/// Maximum number of records that are deleted at once.
const MOST: u32 = 10_000;

/// Returns the documents in a field.
fn list<'a>(document: &'a Document, field: &str) -> impl Iterator<Item = &'a Document> {
    document.get_array(field).into_iter().flatten().filter_map(|each| each.as_document())
}

impl Call {
    fn name(&self) -> &str {
        &self.terms.stock
    }

    fn id(&self, operation: &OperationId) -> Document {
        commands::operation_id(self.name(), operation.as_str())
    }

    fn columns(&self, record: &Document) -> Result<Columns, StoreError> {
        let text = |field| record.get_str(field).map_err(|_| self.unreadable(field, record));
        Ok(Columns {
            state: text("state")?.to_owned(),
            reserved: record.get_bool("reserved").unwrap_or_default(),
            quantity: self.int(record, "quantity")?,
            parts: text("parts")?.to_owned(),
            deadline: record.get_i64("deadline").ok(),
            kept_until: record.get_i64("kept_until").ok(),
        })
    }

    /// Returns the segments that the units of an operation are from, or may go to. They hardly ever
    /// change.
    async fn segments_of(&self, operation: &OperationId) -> Result<Vec<u32>, Fault> {
        let (_, found) = self.read(commands::record(self.name(), operation.as_str())).await?;
        let Some(stock) = found else { return Ok(Vec::new()) };
        let all = self.number(self.int(&stock, "segments")?)?.max(1);
        let columns = list(&stock, "record").next().and_then(|record| self.columns(record).ok());
        let each = columns.iter().flat_map(Columns::segments);
        Ok(each.flat_map(|segment| [segment, segment % all]).collect())
    }

    fn is_active(&self, segment: &Document) -> Result<bool, StoreError> {
        segment.get_bool("active").map_err(|_| self.unreadable("active", segment))
    }

    fn count(&self, document: &Document, field: &str) -> Result<u64, StoreError> {
        unsigned(self.int(document, field)?)
    }
}

impl Calls for Call {
    const SNAPSHOT: bool = true;

    // A new primary may know only of an older moment.
    const CURRENT: bool = false;

    type Fault = Fault;
    type Tries = Backoff;
    type Open = Open;

    fn terms(&self) -> &Terms {
        &self.terms
    }

    fn error(&self, kind: StoreErrorKind, text: fmt::Arguments<'_>) -> StoreError {
        self.mongo().rows.error(kind, text)
    }

    fn again(&self, what: &str) -> Fault {
        Fault::Again(what.to_owned())
    }

    fn left(&self) -> Duration {
        self.bounds.left()
    }

    async fn retry(&self, tries: &mut Backoff, fault: Fault) -> Result<(), StoreError> {
        self.on_records().pause(tries.next_pause(), fault).await?;
        self.mongo().server.end_abandoned(self.bounds).await;
        Ok(())
    }

    async fn look(&self, operation: &OperationId, current: bool) -> Result<Option<Look>, Fault> {
        let command = commands::look(self.name(), operation.as_str());
        let (sent, found) =
            if current { self.read_current(command).await? } else { self.read(command).await? };
        let Some(stock) = found else { return Ok(None) };
        let now = self.int(&stock, "now")?;
        self.observe(now, sent);
        let each = list(&stock, "parts").map(|segment| {
            let quantity = self.count(segment, "available")?;
            Ok(Part { segment: self.number(self.int(segment, "segment")?)?, quantity })
        });
        let available = each.collect::<Result<_, StoreError>>()?;
        let record = list(&stock, "record").next().map(|record| self.columns(record)).transpose()?;
        Ok(Some(Look { now, available, record, overdue: list(&stock, "overdue").next().is_some() }))
    }

    async fn audit(&self, with_records: bool) -> Result<Option<Audit>, Fault> {
        let (_, found) = self.read_current(commands::audit(self.name(), with_records)).await?;
        let Some(stock) = found else { return Ok(None) };
        let each = list(&stock, "parts").map(|segment| {
            let count = |field| self.count(segment, field);
            let (available, held, sold) = (count("available")?, count("held")?, count("sold")?);
            Ok(SegmentCounts { available, held, sold, active: self.is_active(segment)? })
        });
        let segments = each.collect::<Result<_, StoreError>>()?;
        let count = |field| self.count(&stock, field);
        let (epoch, initial, restocked) = (count("epoch")?, count("initial")?, count("restocked")?);
        let counted = Snapshot { segments, in_transit: 0, initial, restocked, epoch };
        let sums = list(&stock, "sums").next();
        let sum = |of| sums.map_or(Ok(0), |sums| self.count(sums, of));
        Ok(Some(Audit { counted, held: sum("held")?, sold: sum("sold")?, forgotten: count("forgotten")? }))
    }

    async fn begin(&self, scope: Scope<'_>) -> Result<Open, Fault> {
        let segments = match scope {
            Scope::Segment(segment) => Some(vec![segment]),
            Scope::Operation(operation) => Some(self.segments_of(operation).await?),
            Scope::Records => Some(Vec::new()),
            Scope::Stock => None,
        };
        self.open(segments).await
    }

    async fn end(&self, mut open: Open, ending: Ending) -> Result<(), Fault> {
        if ending == Ending::Commit {
            return self.commit(open).await;
        }
        let settled = if ending == Ending::Answer { self.settle(&mut open).await } else { Ok(()) };
        self.undo(open).await;
        settled
    }

    async fn note(&self, open: &mut Open, note: &Note<'_>) -> Result<bool, Fault> {
        let record = doc! {
            "_id": "$_id", "state": note.state, "reserved": note.hold.is_some(),
            "quantity": signed(note.quantity), "parts": literal(note.parts),
            "deadline": commands::after(note.hold), "kept_until": commands::after(note.kept),
        };
        let note = doc! {
            "findAndModify": OPERATIONS,
            "query": { "_id": self.id(note.operation) },
            "update": [{ "$replaceWith": { "$cond": [is_new(), record, "$$ROOT"] } }],
            "upsert": true,
            "new": true,
            "fields": { "in_time": commands::until(self.terms.latest()) },
        };
        let answer = self.run("change", open, note).await?;
        let was_there = answer.get_document("lastErrorObject").and_then(|it| it.get_bool("updatedExisting"));
        let in_time = answer.get_document("value").and_then(|record| record.get_bool("in_time"));
        Ok(was_there.is_ok_and(|was_there| !was_there) && in_time.unwrap_or_default())
    }

    async fn record(&self, open: &mut Open, operation: &OperationId) -> Result<Option<Columns>, Fault> {
        let found = self.find(open, find_one(OPERATIONS, self.id(operation), doc! {})).await?;
        Ok(found.first().map(|record| self.columns(record)).transpose()?)
    }

    async fn set_parts(&self, open: &mut Open, operation: &OperationId, parts: &str) -> Result<(), Fault> {
        let query = doc! { "_id": self.id(operation) };
        self.change(open, update_one(OPERATIONS, query, doc! { "$set": { "parts": parts } }), 1).await
    }

    async fn finish(
        &self,
        open: &mut Open,
        operation: &OperationId,
        [before, now]: [&'static str; 2],
    ) -> Result<bool, Fault> {
        let in_time = commands::until(self.terms.latest());
        let query = doc! { "_id": self.id(operation), "state": before, "$expr": in_time };
        let set = doc! { "state": now, "kept_until": commands::after(Some(self.terms.retention)) };
        Ok(self.execute(open, update_all(OPERATIONS, query, set)).await? == 1)
    }

    async fn overdue(&self, open: &mut Open, limit: u32) -> Result<Vec<(String, String)>, Fault> {
        let filter = commands::overdue(self.name());
        let command = find(OPERATIONS, filter, doc! { "parts": 1 }, doc! { "deadline": 1 }, limit.into());
        let read = |record: &Document| {
            let operation = record.get_document("_id").and_then(|id| id.get_str("operation"));
            let parts = record.get_str("parts");
            Ok((operation.unwrap_or_default().to_owned(), parts.unwrap_or_default().to_owned()))
        };
        self.find(open, command).await?.iter().map(read).collect()
    }

    async fn expire(&self, open: &mut Open, operations: &[&str]) -> Result<(), Fault> {
        let id = |operation: &&str| commands::operation_id(self.name(), operation);
        let ids: Vec<_> = operations.iter().map(id).collect();
        let query = doc! { "_id": { "$in": ids }, "state": "H" };
        let set = doc! { "state": "E", "kept_until": commands::after(Some(self.terms.retention)) };
        self.change(open, update_all(OPERATIONS, query, set), operations.len()).await
    }

    async fn purge(&self, open: &mut Open, which: Which<'_>) -> Result<Vec<Over>, Fault> {
        let (of, most) = match which {
            Which::Of(operation) => (doc! { "_id": self.id(operation) }, 1),
            Which::AtMost(limit) => (doc! { "_id.stock": self.name() }, limit.min(MOST)),
        };
        let fields = doc! { "state": 1, "quantity": 1 };
        let find = find(OPERATIONS, commands::over(of), fields, doc! { "kept_until": 1 }, most.into());
        let over = self.find(open, find).await?;
        let ids: Vec<_> = over.iter().filter_map(|record| record.get("_id")).collect();
        if !ids.is_empty() {
            let delete = doc! { "q": { "_id": { "$in": ids } }, "limit": 0 };
            self.change(open, doc! { "delete": OPERATIONS, "deletes": [delete] }, over.len()).await?;
        }
        let read = |record: &Document| {
            let state = record.get_str("state").map_err(|_| self.unreadable("state", record))?;
            Ok::<_, StoreError>(Over { state: state.to_owned(), quantity: self.int(record, "quantity")? })
        };
        Ok(over.iter().map(read).collect::<Result<_, _>>()?)
    }

    async fn forget(&self, open: &mut Open, units: i64) -> Result<(), Fault> {
        let query = doc! { "_id": self.name() };
        self.execute(open, update_one(STOCKS, query, doc! { "$inc": { "forgotten": units } })).await.map(drop)
    }

    async fn lock(&self, open: &mut Open) -> Result<bool, Fault> {
        let query = doc! { "_id": self.name() };
        Ok(self.execute(open, update_one(STOCKS, query, doc! { "$inc": { "locked": 1_i64 } })).await? == 1)
    }

    async fn stock(&self, open: &mut Open) -> Result<Option<Stock>, Fault> {
        let sent = Clock::Boot.now();
        let put_in = doc! { "$add": ["$initial", "$restocked"] };
        let fields = doc! { "segments": 1, "put_in": put_in, "now": clock() };
        let found = self.find(open, find_one(STOCKS, self.name(), fields)).await?;
        let Some(stock) = found.first() else { return Ok(None) };
        let now = self.int(stock, "now")?;
        self.observe(now, sent);
        let segments = self.number(self.int(stock, "segments")?)?;
        Ok(Some(Stock { now, segments, put_in: self.count(stock, "put_in")? }))
    }

    async fn create(&self, open: &mut Open, segments: u32, units: u64) -> Result<bool, Fault> {
        let stock = doc! {
            "segments": i64::from(segments), "epoch": 1_i64, "initial": signed(units), "restocked": 0_i64,
            "forgotten": 0_i64, "locked": 0_i64,
        };
        let insert = doc! { "q": { "_id": self.name() }, "u": { "$setOnInsert": stock }, "upsert": true };
        let answer = self.run("change", open, update(STOCKS, vec![insert])).await?;
        Ok(answer.contains_key("upserted"))
    }

    async fn resize(&self, open: &mut Open, segments: u32, all: usize) -> Result<(), Fault> {
        self.change(open, commands::activate(self.name(), segments), all).await?;
        let change = doc! { "$set": { "segments": i64::from(segments) }, "$inc": { "epoch": 1_i64 } };
        self.change(open, update_one(STOCKS, doc! { "_id": self.name() }, change), 1).await
    }

    async fn restock(&self, open: &mut Open, units: u64) -> Result<(), Fault> {
        let room = doc! { "$lte": [{ "$add": ["$initial", "$restocked"] }, signed(MAX_QUANTITY - units)] };
        let query = doc! { "_id": self.name(), "$expr": room };
        self.change(open, update_one(STOCKS, query, doc! { "$inc": { "restocked": signed(units) } }), 1).await
    }

    async fn add(&self, open: &mut Open, first: usize, units: &[u64]) -> Result<(), Fault> {
        let document = |(segment, &units): (u32, &u64)| {
            doc! {
                "_id": commands::segment_id(self.name(), segment), "active": true, "available": signed(units),
                "held": 0_i64, "sold": 0_i64, "fence": 0_i64,
            }
        };
        let documents: Vec<_> = (first as u32..).zip(units).map(document).collect();
        self.change(open, doc! { "insert": SEGMENTS, "documents": documents }, units.len()).await
    }

    async fn segments(&self, open: &mut Open) -> Result<Vec<(bool, u64)>, Fault> {
        let found = self.find(open, commands::segments(self.name())).await?;
        found.iter().map(|it| Ok((self.is_active(it)?, self.count(it, "available")?))).collect()
    }

    async fn segment(&self, open: &mut Open, segment: u32) -> Result<Option<(bool, u64, i64)>, Fault> {
        let id = commands::segment_id(self.name(), segment);
        let found = self.find(open, find_one(SEGMENTS, id, doc! {})).await?;
        let Some(it) = found.first() else { return Ok(None) };
        Ok(Some((self.is_active(it)?, self.count(it, "available")?, self.int(it, "fence")?)))
    }

    async fn take(&self, open: &mut Open, units: Units) -> Result<bool, Fault> {
        let Units { segment, quantity, sold, held, token } = units;
        let id = commands::segment_id(self.name(), segment);
        let mut query = doc! { "_id": id, "active": true, "available": { "$gte": quantity } };
        let mut change = doc! { "$inc": { "available": -quantity, "sold": sold, "held": held } };
        if let Some(token) = token {
            query.insert("fence", doc! { "$lte": token });
            change.insert("$set", doc! { "fence": token });
        }
        Ok(self.execute(open, update_one(SEGMENTS, query, change)).await? == 1)
    }

    async fn shift(&self, open: &mut Open, shifts: &[Shift]) -> Result<(), Fault> {
        let each = shifts.iter().map(|&Shift { segment, counts: [available, held, sold] }| {
            let enough = |difference: i64| doc! { "$gte": -difference };
            let query = doc! {
                "_id": commands::segment_id(self.name(), segment),
                "available": enough(available), "held": enough(held), "sold": enough(sold),
            };
            doc! { "q": query, "u": { "$inc": { "available": available, "held": held, "sold": sold } } }
        });
        self.change(open, update(SEGMENTS, each.collect()), shifts.len()).await
    }
}
