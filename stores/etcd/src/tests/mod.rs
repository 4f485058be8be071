//! Tests on real servers. `xtask` runs these where etcd is installed.

mod on_etcd;

use lock_store_sequences::Settings;
use lock_store_sequences::testing::*;

use crate::{EtcdStore, Target, open};

/// Opens a manager's handle.
fn store(url: &str, prefix: &str) -> Arc<EtcdStore> {
    let settings = Settings { prefix: prefix.to_owned(), call_timeout: SLACK };
    open(Target::parse(url).unwrap(), &settings).unwrap()
}
