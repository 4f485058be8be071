//! [`MongoStore`]: how a database is opened.

use std::sync::Arc;

use lock_core::store::{Abilities, Notices, StoreError, StoreErrorKind};
use lock_store_records::Records;
use lock_store_records::rows::{ON_SERVER, Settings};
use mongodb::options::Acknowledgment;

use crate::records::Mongo;
use crate::server::Target;
use crate::stock::stocks;

/// One manager's handle on a database.
pub type MongoStore = Records<Mongo>;

/// The features of MongoDB.
const ABILITIES: Abilities =
    Abilities { name: "the MongoDB store", direct_grants: true, notices: Notices::Pushed, ..ON_SERVER };

/// Opens MongoDB. Connects on first use. The call time-out is also that of looking for a server.
/// Read and write concern, read preference and retries of the target do not count: what keeps two
/// from holding a lock is not a setting.
///
/// # Errors
///
/// [`StoreErrorKind::Unsupported`] if no database is named, or if the write concern is one that
/// loses grants.
pub fn open(target: Target, settings: &Settings) -> Result<Arc<MongoStore>, StoreError> {
    let refuse = |text: String| Err(StoreError::new(StoreErrorKind::Unsupported, text));
    let (database, concern) = match &target {
        Target::Address(address) => (&address.default_database, address.write_concern.as_ref()),
        Target::Options(options) => (&options.default_database, options.write_concern.as_ref()),
    };
    if database.as_ref().is_none_or(String::is_empty) {
        return refuse(
            "no database of MongoDB is named; write `mongodb://host/DATABASE`, or set `default_database`"
                .to_owned(),
        );
    }
    if let Some(w) =
        concern.and_then(|concern| concern.w.as_ref()).filter(|w| **w != Acknowledgment::Majority)
    {
        let w = match w {
            Acknowledgment::Nodes(nodes) => nodes.to_string(),
            Acknowledgment::Custom(name) => name.clone(),
            _ => "unknown".to_owned(),
        };
        return refuse(format!(
            "the write concern of MongoDB is `w={w}`: a new primary may not have a grant that fewer than a majority \
             have, and then lets a second holder in; write `w=majority`, or leave it out"
        ));
    }
    if concern.is_some_and(|concern| concern.journal == Some(false)) {
        return refuse(
            "the write concern of MongoDB is `journal=false`: a crash undoes grants, and their locks get second \
             holders; leave it out"
                .to_owned(),
        );
    }
    let mongo = Mongo::new(target, settings.call_timeout, ABILITIES);
    let stocks = stocks(Arc::clone(&mongo), &settings.prefix);
    let records = Records::new(mongo, &settings.prefix, settings.call_timeout);
    Ok(Arc::new(records.with_stocks(Arc::new(stocks))))
}
