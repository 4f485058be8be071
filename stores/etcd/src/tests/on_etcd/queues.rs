//! The order of waiters, and their notices.

use super::*;

lock_store_sequences::test_queues!(|| new_store().0);
