//! The keys of a spread stock; `scripts/spread.lua` describes their content.

use lock_core::LockKey;
use lock_core::store::stock::OperationId;
use lock_core::store::{StoreError, StoreErrorKind};

use crate::hash_slot::slot;
use crate::names::Names;

/// Number of homes of records. Must never change: the home of an operation must not depend on when
/// it is asked for.
pub(super) const HOMES: u16 = 16;

/// The names of one stock.
#[derive(Debug)]
pub(super) struct SpreadNames {
    name: String,
    pub(super) stock: String,
}

/// The names at one segment.
pub(super) struct PartNames {
    pub(super) part: String,
    pub(super) puts: String,
    pub(super) times: String,
}

impl SpreadNames {
    pub(super) fn new(prefix: &str, key: &LockKey) -> Result<Self, StoreError> {
        let name = Names::new(prefix, key)?.lock().to_string();
        if name.contains(['{', '}']) {
            let what = format!(
                "the stock {name:?} can't be spread: braces in a name put all its keys into one slot of a cluster. \
                 Leave the braces out, or keep the stock in one slot"
            );
            return Err(StoreError::new(StoreErrorKind::Unsupported, what));
        }
        Ok(Self { stock: format!("lock_stock:{{{name}}}"), name })
    }

    pub(super) fn part(&self, segment: u32) -> PartNames {
        let tag = format!("{{{}/{segment}}}", self.name);
        PartNames {
            part: format!("lock_stock_part:{tag}"),
            puts: format!("lock_stock_puts:{tag}"),
            times: format!("lock_stock_put_times:{tag}"),
        }
    }

    /// Returns the list of open operations at a home.
    pub(super) fn open(&self, home: u16) -> String {
        format!("lock_stock_open:{{{}/h{home}}}", self.name)
    }

    /// Returns an operation's record, and the list of open operations at its home.
    pub(super) fn record(&self, operation: &OperationId) -> [String; 2] {
        // The servers' hash of keys, which is the same in every program and on every machine.
        let home = slot(operation.as_str()) % HOMES;
        [format!("lock_stock_record:{{{}/h{home}}}:{operation}", self.name), self.open(home)]
    }
}
