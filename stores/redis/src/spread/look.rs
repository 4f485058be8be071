//! Looks at the content of all segments, at one moment or nearly.

use lock_core::internal::plan::few_parts;
use lock_core::store::stock::{Part, SegmentCounts, Snapshot};
use lock_core::store::{StoreError, StoreErrorKind};

use super::Spread;
use super::steps::{Content, Root};
use super::take::Search;
use crate::join::join;

/// All segments, each looked at shortly after the other.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Seen {
    root: Root,
    parts: Vec<Content>,
}

/// The segments that have enough.
#[derive(Debug)]
pub(super) enum Room {
    Parts(Vec<Part>),
    /// There was too little, at one moment.
    None {
        available: u64,
        /// Units that are reserved there.
        held: u64,
    },
    /// There may be enough, but something is on its way, or others came in between.
    Unclear,
}

impl Seen {
    /// Returns the active segments.
    pub(super) fn active(&self) -> impl Iterator<Item = (u32, &Content)> {
        (0..self.root.count).zip(&self.parts)
    }

    /// Returns the retired segments.
    pub(super) fn retired(&self) -> impl Iterator<Item = (u32, &Content)> {
        (0..).zip(&self.parts).skip(self.root.count as usize)
    }

    /// Returns all units that were ever put in.
    pub(super) fn put_in(&self) -> u64 {
        self.parts.iter().map(|part| part.initial + part.restocked).sum()
    }

    pub(super) fn available(&self) -> u64 {
        self.active().map(|(_, part)| part.available).sum()
    }

    /// Returns the transfers under way: from, to, number, units.
    pub(super) fn under_way(&self) -> impl Iterator<Item = (u32, u32, u64, u64)> {
        (0..)
            .zip(&self.parts)
            .flat_map(|(from, part)| part.sent.iter().map(move |&(to, nth, units)| (from, to, nth, units)))
    }

    /// Returns the units that have left one segment and not arrived at another.
    fn in_transit(&self) -> u64 {
        let on_the_way = |&(from, to, nth, _): &(u32, u32, u64, u64)| {
            self.parts.get(to as usize).is_some_and(|part| part.last_from(from) < nth)
        };
        self.under_way().filter(on_the_way).map(|(.., units)| units).sum()
    }

    pub(super) fn held(&self) -> u64 {
        self.parts.iter().map(|part| part.held).sum()
    }

    /// Returns the units that may become available even if nobody gives any back.
    fn possible(&self) -> u64 {
        let units = |part: &Content| part.available + part.taken;
        self.parts.iter().map(units).sum::<u64>() + self.in_transit()
    }

    fn same(&self, other: &Self, of: impl Fn(&Content) -> u64) -> bool {
        self.root == other.root && self.parts.iter().map(&of).eq(other.parts.iter().map(&of))
    }

    /// Chooses the first segment that has enough, or else the largest ones, so that few are
    /// touched.
    fn parts_for(&self, quantity: u64, first: u32) -> Option<Vec<Part>> {
        let (ahead, behind): (Vec<_>, Vec<_>) = self.active().partition(|(segment, _)| *segment >= first);
        let order = ahead.into_iter().chain(behind);
        let order: Vec<_> = order.map(|(segment, part)| Part { segment, quantity: part.available }).collect();
        if let Some(part) = order.iter().find(|part| part.quantity >= quantity) {
            return Some(vec![Part { quantity, ..*part }]);
        }
        (self.available() >= quantity).then(|| few_parts(order, quantity))
    }

    fn snapshot(&self) -> Snapshot {
        let each = (0..).zip(&self.parts).map(|(segment, part)| SegmentCounts {
            available: part.available,
            held: part.held + part.taken,
            sold: part.sold,
            active: segment < self.root.count,
        });
        Snapshot {
            segments: each.collect(),
            in_transit: self.in_transit(),
            initial: self.parts.iter().map(|part| part.initial).sum(),
            restocked: self.parts.iter().map(|part| part.restocked).sum(),
            epoch: self.root.epoch,
        }
    }
}

impl Spread {
    /// Looks at everything once; `None` if there is no such stock.
    pub(super) async fn collect(&self) -> Result<Option<Seen>, StoreError> {
        let Some(root) = self.load().await? else { return Ok(None) };
        let looks: Vec<_> = (0..root.ever).map(|segment| self.look_at_part(segment)).collect();
        let parts = join(looks).await.into_iter().collect::<Result<Option<Vec<_>>, _>>()?;
        let Some(parts) = parts else {
            let what = format!("a segment of the stock {} is gone", self.names.stock);
            return Err(StoreError::new(StoreErrorKind::ForeignData, what));
        };
        Ok(Some(Seen { root, parts }))
    }

    /// Returns where there are `quantity` units; `None` if there is no such stock.
    pub(super) async fn room(&self, quantity: u64, search: Search) -> Result<Option<Room>, StoreError> {
        if let Some((segment, _)) = search.only {
            let part = self.look_at_part(segment).await?.filter(|part| !part.retired).unwrap_or_default();
            let (available, held) = (part.available, part.held);
            return Ok(Some(match available {
                enough if enough >= quantity => Room::Parts(vec![Part { segment, quantity }]),
                available => Room::None { available, held },
            }));
        }
        let Some(seen) = self.collect().await? else { return Ok(None) };
        if let Some(parts) = seen.parts_for(quantity, search.first) {
            return Ok(Some(Room::Parts(parts)));
        }
        if seen.possible() >= quantity {
            self.finish_moves(&seen).await?;
            return Ok(Some(Room::Unclear));
        }
        // Nothing came to any segment between the first look and the second. So at the moment
        // between the two, no segment had more than at its first look.
        let Some(again) = self.collect().await? else { return Ok(None) };
        if !seen.same(&again, |part| part.increases) {
            return Ok(Some(Room::Unclear));
        }
        let (available, held) = (again.available(), again.held());
        self.remember_short(again);
        Ok(Some(Room::None { available, held }))
    }

    /// Returns the available and the reserved units if there were too few when this process last
    /// looked, and no segment has got any since. This one look then counts as the second of the two
    /// that are needed. It saves time in a sale, where most requests come when all is sold.
    pub(super) async fn still_short(&self, quantity: u64) -> Result<Option<(u64, u64)>, StoreError> {
        let Some(before) = self.remembered().and_then(|memory| memory.short) else { return Ok(None) };
        if before.possible() >= quantity {
            return Ok(None);
        }
        let now = self.collect().await?;
        let short = |now: &Seen| now.possible() < quantity && before.same(now, |part| part.increases);
        Ok(now.filter(short).map(|now| (now.available(), now.held())))
    }

    pub(super) async fn snapshot(&self) -> Result<Option<Snapshot>, StoreError> {
        let mut nth = 0;
        loop {
            let Some(seen) = self.collect().await? else { return Ok(None) };
            let Some(again) = self.collect().await? else { return Ok(None) };
            // The first look holds at the moment between the two. The second may have missed units
            // that arrived after a segment was looked at. A sale between the looks only moves units
            // between the columns of one segment, and never changes their sum.
            if seen.same(&again, |part| part.moves) {
                return Ok(Some(seen.snapshot()));
            }
            nth += 1;
            self.step_back(nth).await;
        }
    }
}
