//! Makes and retires segments, and evens them out.

use lock_core::internal::plan::fill;
use lock_core::store::StoreError;

use super::Spread;
use super::look::Seen;
use super::steps::Root;
use crate::join::join;

impl Spread {
    /// Returns the stock as a whole, after finishing what was begun with it; `None` if there is no
    /// such stock.
    pub(super) async fn load(&self) -> Result<Option<Root>, StoreError> {
        let mut nth = 0;
        loop {
            let Some(root) = self.root("look", []).await? else { return Ok(None) };
            if root.ready {
                self.remember(root.count, root.epoch);
                return Ok(Some(root));
            }
            self.finish(&root).await?;
            nth += 1;
            if nth > 1 {
                self.step_back(nth).await;
            }
        }
    }

    /// Returns the number of segments, as last known.
    pub(super) async fn count(&self) -> Result<Option<u32>, StoreError> {
        if let Some(memory) = self.remembered() {
            return Ok(Some(memory.count));
        }
        Ok(self.load().await?.map(|root| root.count))
    }

    /// Finishes what was begun with the segments; others may do so at the same time.
    async fn finish(&self, root: &Root) -> Result<(), StoreError> {
        let making: Vec<_> = (0..root.count)
            .map(|segment| {
                let units = root.units.get(segment as usize).copied().unwrap_or_default();
                self.set_part(segment, "make", root.epoch, units)
            })
            .collect();
        all(join(making).await)?;
        let retiring: Vec<_> = (root.count..root.ever)
            .map(|segment| async move {
                self.set_part(segment, "retire", root.epoch, 0).await?;
                self.drain_into(segment, root.count).await
            })
            .collect();
        all(join(retiring).await)?;
        self.root("ready", [root.epoch]).await.map(drop)
    }

    pub(super) async fn initialize(&self, units: &[u64]) -> Result<bool, StoreError> {
        let made = self.root("init", units.iter().copied()).await?;
        self.load().await?;
        Ok(made.is_some_and(|root| root.changed))
    }

    pub(super) async fn resize(&self, segments: u32) -> Result<Option<()>, StoreError> {
        loop {
            let Some(root) = self.load().await? else { return Ok(None) };
            if root.count == segments {
                return Ok(Some(()));
            }
            let begun = self.root("resize", [segments.into(), root.epoch]).await?;
            if begun.is_some_and(|root| root.changed) {
                // Others may have wanted another number.
                return Ok(self.load().await?.map(drop));
            }
        }
    }

    pub(super) async fn rebalance(&self) -> Result<Option<()>, StoreError> {
        let Some(seen) = self.collect().await? else { return Ok(None) };
        self.finish_moves(&seen).await?;
        let Some(seen) = self.collect().await? else { return Ok(None) };
        let units: Vec<(u32, u64)> = seen.active().map(|(segment, part)| (segment, part.available)).collect();
        let total = units.iter().map(|(_, units)| units).sum();
        let even = fill(&vec![0; units.len()], total);
        let (mut more, mut fewer) = (Vec::new(), Vec::new());
        for ((segment, has), wanted) in units.into_iter().zip(even) {
            if has > wanted {
                more.push((segment, has - wanted));
            } else if has < wanted {
                fewer.push((segment, wanted - has));
            }
        }
        let mut moves = Vec::new();
        while let (Some((from, spare)), Some((to, lacks))) = (more.last_mut(), fewer.last_mut()) {
            let units = (*spare).min(*lacks);
            moves.push(self.shift(*from, *to, units));
            *spare -= units;
            *lacks -= units;
            let (no_more, no_fewer) = (*spare == 0, *lacks == 0);
            if no_more {
                more.pop();
            }
            if no_fewer {
                fewer.pop();
            }
        }
        all(join(moves).await)?;
        Ok(Some(()))
    }

    /// Moves `units` units, or as many as there are.
    async fn shift(&self, from: u32, to: u32, units: u64) -> Result<(), StoreError> {
        match self.send(from, to, units).await? {
            Some((nth, units)) => self.arrive(from, to, nth, units).await,
            None => Ok(()),
        }
    }

    /// Moves the units of a retired segment to one that is active, since nobody takes from a
    /// retired one.
    pub(super) async fn drain(&self, segment: u32) -> Result<(), StoreError> {
        match self.load().await? {
            // The segment is active again.
            Some(root) if segment >= root.count => self.drain_into(segment, root.count).await,
            _ => Ok(()),
        }
    }

    async fn drain_into(&self, segment: u32, count: u32) -> Result<(), StoreError> {
        let to = segment % count.max(1);
        // Units that were on the way already go first.
        while let Some((nth, units)) = self.send(segment, to, u64::from(u32::MAX) << 21).await? {
            self.arrive(segment, to, nth, units).await?;
        }
        Ok(())
    }

    /// Finishes transfers that were begun, and moves units from retired segments to active ones.
    /// Returns how much there was to do.
    pub(super) async fn finish_moves(&self, seen: &Seen) -> Result<u64, StoreError> {
        let arriving: Vec<_> =
            seen.under_way().map(|(from, to, nth, units)| self.arrive(from, to, nth, units)).collect();
        let mut done = arriving.len() as u64;
        all(join(arriving).await)?;
        let left: Vec<u32> =
            seen.retired().filter(|(_, part)| part.available > 0).map(|(segment, _)| segment).collect();
        done += left.len() as u64;
        all(join(left.into_iter().map(|segment| self.drain(segment)).collect::<Vec<_>>()).await)?;
        Ok(done)
    }
}

fn all(results: Vec<Result<(), StoreError>>) -> Result<(), StoreError> {
    results.into_iter().collect()
}
