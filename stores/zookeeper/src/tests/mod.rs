//! Tests on real servers. `xtask` runs these where a JDK and Maven are installed.

mod on_zookeeper;

use lock_store_sequences::Settings;
use lock_store_sequences::testing::*;

use crate::{Target, ZooKeeperStore, open};

/// Opens a manager's handle.
fn store(url: &str, prefix: &str) -> Arc<ZooKeeperStore> {
    let settings = Settings { prefix: prefix.to_owned(), call_timeout: SLACK };
    open(Target::parse(url).unwrap(), &settings).unwrap()
}
