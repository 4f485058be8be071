//! [`Record`]: the state of an operation at its home, and what it means for the segments.

use lock_core::store::stock::{Part, State};

/// The aim of an operation, and the column of its units at a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Column {
    /// Taken by an undecided operation over several segments.
    Taken,
    Held,
    Sold,
    Restocked,
}

impl Column {
    pub(super) fn letter(self) -> &'static str {
        match self {
            Self::Taken => "t",
            Self::Held => "h",
            Self::Sold => "s",
            Self::Restocked => "r",
        }
    }

    fn read(letter: &str) -> Option<Self> {
        Some(match letter {
            "h" => Self::Held,
            "s" => Self::Sold,
            "r" => Self::Restocked,
            _ => return None,
        })
    }
}

/// Stage of an operation at its home.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// Looking for units.
    Undecided,
    At(State),
    /// Cancelled before it came.
    Never,
    /// A restock that is done.
    Restocked,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Record {
    pub(super) stage: Stage,
    pub(super) kind: Column,
    pub(super) quantity: u64,
    /// When it was made, by the clock of its home, in microseconds.
    pub(super) born: u64,
    /// Version of the wanted parts.
    pub(super) version: u64,
    /// When the reservation ends, in milliseconds; its duration as long as it is undecided.
    pub(super) ends: u64,
    /// Whether some of the decision may still have to be carried out.
    pub(super) open: bool,
    /// All segments that were ever asked, with 0 units for those that gave nothing.
    pub(super) parts: Vec<Part>,
}

impl Record {
    pub(super) fn read(text: &str) -> Option<Self> {
        let mut words = text.split(' ');
        let (state, kind) = (words.next()?, Column::read(words.next()?)?);
        let mut number = || words.next()?.parse().ok();
        let (quantity, born, version, ends) = (number()?, number()?, number()?, number()?);
        let open = words.next()? == "1";
        let part = |word: &str| {
            let (segment, quantity) = word.split_once(':')?;
            Some(Part { segment: segment.parse().ok()?, quantity: quantity.parse().ok()? })
        };
        let stage = match state {
            "P" => Stage::Undecided,
            "S" => Stage::At(State::Sold),
            "H" => Stage::At(State::Held),
            "C" => Stage::At(State::Cancelled),
            "E" => Stage::At(State::Expired),
            "B" => Stage::At(State::GivenBack),
            "N" => Stage::Never,
            "R" => Stage::Restocked,
            _ => return None,
        };
        let parts = words.map(part).collect::<Option<_>>()?;
        Some(Self { stage, kind, quantity, born, version, ends, open, parts })
    }

    /// Returns the parts as the record stores them.
    pub(super) fn parts_text<'a>(parts: impl IntoIterator<Item = &'a Part>) -> String {
        parts.into_iter().map(|part| format!(" {}:{}", part.segment, part.quantity)).collect()
    }

    /// Returns the parts of the segments that give something.
    pub(super) fn given(&self) -> impl Iterator<Item = Part> {
        self.parts.iter().copied().filter(|part| part.quantity > 0)
    }

    /// Whether the operation takes from several segments. While it is undecided, its units are
    /// neither sold nor held until it has all of them.
    pub(super) fn is_merge(&self) -> bool {
        self.kind != Column::Restocked && self.given().nth(1).is_some()
    }

    /// Returns the units and the column that the operation is to have at each segment.
    pub(super) fn wanted(&self) -> impl Iterator<Item = (Part, Column)> {
        let column = match self.stage {
            Stage::Undecided if self.is_merge() => Some(Column::Taken),
            Stage::Undecided => Some(self.kind),
            Stage::At(State::Sold) => Some(Column::Sold),
            Stage::At(State::Held) => Some(Column::Held),
            Stage::At(State::Cancelled | State::Expired | State::GivenBack) | Stage::Never => None,
            Stage::Restocked => Some(Column::Restocked),
        };
        self.parts.iter().map(move |part| match column {
            Some(column) => (*part, column),
            None => (Part { quantity: 0, ..*part }, Column::Sold),
        })
    }

    /// Returns `parts`, and 0 units for all other segments that were asked.
    pub(super) fn replaced(&self, parts: &[Part]) -> Vec<Part> {
        let gone = |old: &&Part| parts.iter().all(|new| new.segment != old.segment);
        let nothing = self.parts.iter().filter(gone).map(|old| Part { quantity: 0, ..*old });
        parts.iter().copied().chain(nothing).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Record {
        Record::read(text).unwrap()
    }

    #[test]
    fn a_record_is_read_as_it_was_written() {
        let record = read("H h 5 100 102 2000 1 3:5 0:0");
        assert_eq!((record.stage, record.kind, record.quantity), (Stage::At(State::Held), Column::Held, 5));
        assert_eq!((record.born, record.version, record.ends, record.open), (100, 102, 2000, true));
        assert_eq!(Record::parts_text(&record.parts), " 3:5 0:0");
        assert!(read("N s 0 1 1 0 0").parts.is_empty());
    }

    #[test]
    fn what_is_no_record_is_none() {
        for text in [
            "",
            "X s 1 1 1 0 0",
            "S t 1 1 1 0 0",
            "S s 1 1 1 0",
            "S s -1 1 1 0 0",
            "S s 1 1 1 0 0 a:1",
            "S s 1 1 1 0 0 1",
        ] {
            assert_eq!(Record::read(text), None, "{text:?}");
        }
    }

    #[test]
    fn only_a_merge_has_units_that_are_neither_held_nor_sold() {
        fn columns(text: &str) -> Vec<(u64, Column)> {
            read(text).wanted().map(|(part, column)| (part.quantity, column)).collect()
        }
        assert_eq!(columns("P s 3 1 1 0 1 0:3 1:0"), [(3, Column::Sold), (0, Column::Sold)]);
        assert_eq!(columns("P h 3 1 1 0 1 0:1 1:2"), [(1, Column::Taken), (2, Column::Taken)]);
        assert_eq!(columns("H h 3 1 1 0 1 0:1 1:2"), [(1, Column::Held), (2, Column::Held)]);
        assert_eq!(columns("P r 3 1 1 0 1 0:1 1:2"), [(1, Column::Restocked), (2, Column::Restocked)]);
        for over in ["C", "E", "B"] {
            assert_eq!(
                columns(&format!("{over} h 3 1 1 0 1 0:1 1:2")),
                [(0, Column::Sold), (0, Column::Sold)]
            );
        }
    }

    #[test]
    fn no_segment_that_was_asked_is_forgotten() {
        let record = read("P s 3 1 1 0 1 0:3 4:0");
        let parts = record.replaced(&[Part { segment: 4, quantity: 1 }, Part { segment: 2, quantity: 2 }]);
        assert_eq!(Record::parts_text(&parts), " 4:1 2:2 0:0");
        assert_eq!(Record::parts_text(&record.replaced(&[])), " 0:0 4:0");
    }
}
