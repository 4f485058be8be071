//! Versions with known defects.

use std::io;
use std::sync::{Arc, Mutex};

use tracing_subscriber::fmt;

use super::*;
use crate::open::known_defect;
use crate::tests::*;

/// The log.
#[derive(Clone, Default)]
struct Said(Arc<Mutex<Vec<u8>>>);

impl io::Write for Said {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Debian 12 has such a version.
#[tokio::test]
async fn a_version_with_defects_is_warned_of_once_and_has_locks() {
    let said = Said::default();
    let writer = said.clone();
    let logs = fmt().with_ansi(false).with_writer(move || writer.clone()).finish();
    let logging = tracing::subscriber::set_default(logs);
    let (store, _) = new_store();
    store.check().await.unwrap();
    let lock = trying(Kind::Mutex, "a", 1, SECOND);
    assert!(granted(&store, &lock).await && release(&store, &lock).await);
    drop(logging);
    let said = String::from_utf8(said.0.lock().unwrap().clone()).unwrap();
    let log = SERVER.log();
    let version = log.split_once("\"etcd-version\":\"").and_then(|(_, rest)| rest.split('"').next()).unwrap();
    let good = known_defect(version).unwrap();
    assert_eq!(said.matches("WARN lock_runtime::store").count(), usize::from(good.is_some()), "{said}");
    if let Some(good) = good {
        assert!(
            said.contains(&format!("etcd {version} ")) && said.contains(&format!("etcd {good} ")),
            "{said}"
        );
    }
}
