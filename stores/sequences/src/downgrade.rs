//! Downgrades: a writer's entry becomes a reader's, and keeps its place.

use std::sync::Arc;
use std::time::Duration;

use lock_core::internal::sync::lock;
use lock_core::store::{Lacked, RenewRequest, Renewed, StoreError};

use crate::entries::{Following, Own, State};
use crate::leave::set;
use crate::locks::Inner;
use crate::named::Name;
use crate::sessions::Live;
use crate::store::{Class, Entry, OrderedStore};

impl<S: OrderedStore> Inner<S> {
    /// Renews holds, and turns those for writing into holds for reading.
    pub(crate) async fn downgrade(&self, request: &RenewRequest) -> Result<Vec<Renewed>, StoreError> {
        if !self.store.abilities().downgrade {
            return Err(self.store.abilities().refusal(Lacked::Downgrade));
        }
        let mut answers = self.renew(request).await?;
        for (at, item) in request.items.iter().enumerate() {
            if answers.get(at) != Some(&Renewed::Held) {
                continue;
            }
            let found = {
                let own = lock(&self.entries);
                let entry = self.own_entry(&own, &item.item);
                let of = |own: &Own| (Arc::clone(&own.entered), own.born, own.state);
                own.get(&entry).map(of).map(|of| (entry, of))
            };
            let Some((writer, (entered, born, State::Holds))) = found else {
                set(&mut answers, at, Renewed::Gone);
                continue;
            };
            if writer.class != Class::Write {
                continue;
            }
            // The end of the writer's entry is no loss.
            let guard = lock(&self.entries).change(&writer, |own| std::mem::take(&mut own.following));
            drop(guard);
            let reader = Entry { class: Class::Read, ..writer.clone() };
            let name = Name::new(&self.store, entered.id, &reader);
            match self.store.downgrade(entered.id, &writer, born).await? {
                Some(turned) => self.turn(entered, &writer, born, reader, turned, name),
                None => {
                    self.forget(&writer, born);
                    set(&mut answers, at, Renewed::Gone);
                }
            }
        }
        Ok(answers)
    }

    /// Records that the entry of a writer is that of a reader now.
    fn turn(&self, entered: Arc<Live>, writer: &Entry, born: u64, reader: Entry, turned: u64, name: Name) {
        let mut entries = lock(&self.entries);
        let is_it = entries.get(writer).is_some_and(|own| own.born == born);
        let old = if is_it { entries.remove(writer) } else { None };
        // If the writer's was given up meanwhile, the sweeper deletes the reader's.
        let kept = old.as_ref().map(|old| (old.state, old.until, old.lease, old.last_token, old.doubt));
        let (state, until, lease, last_token, doubt) =
            kept.unwrap_or((State::Ends, self.clock.now(), Duration::ZERO, 0, None));
        let own = Own {
            live: old.as_ref().map_or_else(|| Arc::clone(&entered), |old| Arc::clone(&old.live)),
            entered,
            moves_to: None,
            born: turned,
            state,
            until,
            lease,
            doubt,
            group: [reader.clone()].into(),
            is_direct: false,
            is_first: true,
            told: None,
            last_token,
            following: Following::default(),
            _name: Some(name),
        };
        let replaced = entries.add(reader, own);
        let wake = self.sweep_by(&mut entries, until);
        drop(entries);
        drop((old, replaced));
        self.wake(wake);
    }
}
