//! [`LockList`]: the locks of a prefix, page by page.

use std::sync::Arc;

use lock_core::LockKey;
use lock_core::store::{Cursor, LockStatus, ScanRequest};
use lock_engine::Engine;

use crate::error::LockError;

/// The held locks whose keys begin with a prefix, for operators; made by
/// [`LockManager::list`](crate::LockManager::list).
#[derive(Debug)]
#[must_use = "nothing is asked before `next_page`"]
pub struct LockList {
    engine: Arc<Engine>,
    prefix: String,
    /// Where the next page begins; `None` for the first.
    cursor: Option<Cursor>,
    is_over: bool,
}

impl LockList {
    pub(crate) fn new(engine: Arc<Engine>, prefix: String) -> Self {
        Self { engine, prefix, cursor: None, is_over: false }
    }

    /// Returns the next page, in no order; `None` after the last. A page may be empty although
    /// others follow, and a lock may be on several pages. A lock that is held from the first page
    /// to the last is on at least one.
    ///
    /// # Errors
    ///
    /// [`LockError::Store`], or [`Misconfigured`](LockError::Misconfigured) where the store can't
    /// list locks or is not allowed to. The same page may be asked for again. When the servers of
    /// a cluster have changed, the error says to begin a new list.
    ///
    /// # Cancel safety
    ///
    /// After a cancelled call, the next one asks for the same page.
    pub async fn next_page(&mut self) -> Result<Option<Vec<(LockKey, LockStatus)>>, LockError> {
        if self.is_over {
            return Ok(None);
        }
        let timeout = self.engine.settings.call_timeout;
        let request = ScanRequest { prefix: self.prefix.clone(), cursor: self.cursor.clone(), timeout };
        let page = self.engine.bounded(|store| store.scan(request)).await?;
        self.is_over = page.next.is_none();
        self.cursor = page.next;
        Ok(Some(page.locks))
    }
}
