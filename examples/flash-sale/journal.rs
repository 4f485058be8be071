//! The requests of buyers and the answers to them. A request is recorded before it is sent and its
//! answer when it has come, so after a crash only the requests in flight are unknown.

use std::collections::HashMap;
use std::collections::hash_map::Entry as Place;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use serde::{Deserialize, Serialize};

use crate::Result;

/// The action that a request asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Action {
    Buy,
    Reserve,
    Confirm,
    Cancel,
    GiveBack,
}

/// The answer to the buyer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Answer {
    Done,
    SoldOut,
    Expired,
}

/// One line: a request before it is sent, or its answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Entry {
    /// The id of the order in the stock.
    pub(crate) order: String,
    pub(crate) action: Action,
    pub(crate) quantity: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) answer: Option<Answer>,
}

/// State of an order, by the answers to its buyer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Stands {
    #[default]
    Nothing,
    Held,
    Sold,
    /// Cancelled, expired, given back.
    Over,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Order {
    pub(crate) quantity: u64,
    pub(crate) reserved: bool,
    pub(crate) stands: Stands,
    /// Number of requests without an answer; `last` is their action. An order has one request at a
    /// time, or the same one twice.
    open: u32,
    last: Option<Action>,
}

/// All orders of some buyers.
#[derive(Clone, Debug, Default)]
pub(crate) struct Books {
    orders: HashMap<String, Order>,
}

impl Books {
    pub(crate) fn apply(&mut self, entry: Entry) {
        let order = match self.orders.entry(entry.order) {
            Place::Occupied(place) => place.into_mut(),
            Place::Vacant(place) => place.insert(Order::default()),
        };
        let Some(answer) = entry.answer else {
            order.quantity = entry.quantity;
            order.reserved |= entry.action == Action::Reserve;
            order.open += 1;
            order.last = Some(entry.action);
            return;
        };
        order.open = order.open.saturating_sub(1);
        order.stands = match (entry.action, answer) {
            // This request did nothing.
            (_, Answer::SoldOut) => order.stands,
            (Action::Buy | Action::Confirm, Answer::Done) => Stands::Sold,
            (Action::Reserve, Answer::Done) => Stands::Held,
            (Action::Cancel | Action::GiveBack, Answer::Done) | (_, Answer::Expired) => Stands::Over,
        };
    }

    /// Reads the file of one process. An incomplete last line is skipped: its request was not sent,
    /// or nobody was told its answer.
    pub(crate) fn read(&mut self, file: &Path) -> Result<()> {
        let text = std::fs::read_to_string(file).map_err(|error| format!("{}: {error}", file.display()))?;
        for line in text.split_inclusive('\n').filter_map(|line| line.strip_suffix('\n')) {
            let entry = serde_json::from_str(line).map_err(|error| format!("{}: {error}", file.display()))?;
            self.apply(entry);
        }
        Ok(())
    }

    /// Units sold, by the answers to buyers.
    pub(crate) fn sold(&self) -> u64 {
        self.standing(Stands::Sold).map(|(_, order)| order.quantity).sum()
    }

    pub(crate) fn standing(&self, stands: Stands) -> impl Iterator<Item = (&String, &Order)> {
        self.orders.iter().filter(move |(_, order)| order.stands == stands)
    }

    /// Requests that were sent and never answered.
    pub(crate) fn unknown(&self) -> Vec<Entry> {
        let open = self.orders.iter().filter(|(_, order)| order.open > 0);
        let entries = open.filter_map(|(id, order)| {
            let (order, action, quantity) = (id.clone(), order.last?, order.quantity);
            Some(Entry { order, action, quantity, answer: None })
        });
        entries.collect()
    }

    /// Records the answer to an open request.
    pub(crate) fn settle(&mut self, entry: Entry, answer: Answer) {
        if let Some(order) = self.orders.get_mut(&entry.order) {
            order.open = 1;
        }
        self.apply(Entry { answer: Some(answer), ..entry });
    }
}

/// The books of this process, and the file in which they survive it.
#[derive(Debug)]
pub(crate) struct Journal {
    kept: Mutex<(Books, Option<File>)>,
}

impl Journal {
    pub(crate) fn open(file: Option<&Path>) -> Result<Self> {
        let open = |file: &Path| {
            let options = OpenOptions::new().append(true).create(true).open(file);
            options.map_err(|error| format!("{}: {error}", file.display()))
        };
        Ok(Self { kept: Mutex::new((Books::default(), file.map(open).transpose()?)) })
    }

    /// Records an entry. When this returns, the operating system has it: it survives a SIGKILL,
    /// though not a power cut.
    pub(crate) fn note(&self, entry: Entry) -> Result<()> {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let (books, file) = &mut *kept;
        if let Some(file) = file {
            let mut line = serde_json::to_vec(&entry)?;
            line.push(b'\n');
            file.write_all(&line)?;
        }
        books.apply(entry);
        Ok(())
    }

    pub(crate) fn books(&self) -> Books {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner).0.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(order: &str, action: Action, answer: Option<Answer>) -> Entry {
        Entry { order: order.to_owned(), action, quantity: 2, answer }
    }

    fn books(entries: &[(&str, Action, Option<Answer>)]) -> Books {
        let mut books = Books::default();
        entries.iter().for_each(|(order, action, answer)| books.apply(entry(order, *action, *answer)));
        books
    }

    #[test]
    fn units_are_sold_when_the_buyer_was_told_so_and_has_not_brought_them_back() {
        use Action::{Buy, Cancel, Confirm, GiveBack, Reserve};
        use Answer::{Done, Expired, SoldOut};
        let books = books(&[
            ("bought", Buy, None),
            ("bought", Buy, Some(Done)),
            ("too-late", Buy, None),
            ("too-late", Buy, Some(SoldOut)),
            ("brought-back", Buy, None),
            ("brought-back", Buy, Some(Done)),
            ("brought-back", GiveBack, None),
            ("brought-back", GiveBack, Some(Done)),
            ("confirmed", Reserve, None),
            ("confirmed", Reserve, Some(Done)),
            ("confirmed", Confirm, None),
            ("confirmed", Confirm, Some(Done)),
            ("held", Reserve, None),
            ("held", Reserve, Some(Done)),
            ("cancelled", Reserve, None),
            ("cancelled", Reserve, Some(Done)),
            ("cancelled", Cancel, None),
            ("cancelled", Cancel, Some(Done)),
            ("too-slow", Reserve, None),
            ("too-slow", Reserve, Some(Done)),
            ("too-slow", Confirm, None),
            ("too-slow", Confirm, Some(Expired)),
        ]);
        assert_eq!((books.sold(), books.unknown().len()), (4, 0));
        assert_eq!(books.standing(Stands::Held).map(|(id, _)| id.as_str()).collect::<Vec<_>>(), ["held"]);
    }

    #[test]
    fn a_request_without_an_answer_is_unknown_until_it_is_settled() {
        let mut books = books(&[("a", Action::Buy, None)]);
        let unknown = books.unknown();
        assert_eq!(unknown, [entry("a", Action::Buy, None)]);
        books.settle(unknown[0].clone(), Answer::Done);
        assert_eq!((books.sold(), books.unknown().len()), (2, 0));
    }

    #[test]
    fn one_answer_to_a_double_click_leaves_the_other_open() {
        let mut books = books(&[
            ("a", Action::Buy, None),
            ("a", Action::Buy, None),
            ("a", Action::Buy, Some(Answer::SoldOut)),
        ]);
        let unknown = books.unknown();
        assert_eq!(unknown.len(), 1);
        books.settle(unknown[0].clone(), Answer::Done);
        assert_eq!((books.sold(), books.unknown().len()), (2, 0));
    }

    #[test]
    fn a_journal_is_read_back_without_the_line_that_was_cut_off() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("journal");
        let journal = Journal::open(Some(&file)).unwrap();
        journal.note(entry("a", Action::Buy, None)).unwrap();
        journal.note(entry("a", Action::Buy, Some(Answer::Done))).unwrap();
        journal.note(entry("b", Action::Buy, None)).unwrap();
        let whole = std::fs::read(&file).unwrap();
        std::fs::write(&file, &whole[..whole.len() - 5]).unwrap();
        let mut books = Books::default();
        books.read(&file).unwrap();
        assert_eq!((books.sold(), books.unknown().len()), (2, 0));
        assert_eq!((journal.books().sold(), journal.books().unknown().len()), (2, 1));

        std::fs::write(&file, "nonsense\n").unwrap();
        assert!(books.read(&file).unwrap_err().to_string().contains("journal"));
    }
}
