//! Addresses of MongoDB. Errors never repeat what may be a secret.

use lock_core::store::{StoreError, StoreErrorKind};
use lock_store_mongodb::Target;
use mongodb::options::ConnectionString;

/// How an address is written.
const EXAMPLE: &str = "`mongodb://user:password@h1:27017,h2,h3/database?replicaSet=NAME`";

/// Beginnings of those texts of the driver that name an option, and have nothing else of the
/// address.
const SAFE: [&str; 3] = ["connection string `", "cannot set both ", "cannot specify both "];

/// Reads `mongodb://…` or `mongodb+srv://…`.
pub(super) fn target(url: &str) -> Result<Target, StoreError> {
    let error = match ConnectionString::parse(url) {
        Ok(address) => return Ok(Target::Address(Box::new(address))),
        Err(error) => error.kind.to_string(),
    };
    let said = error.rsplit(": ").next().unwrap_or_default();
    let reason = if error.contains("dns-resolver") {
        " (`mongodb+srv` needs the feature `dns-resolver` of the crate `mongodb`)".to_owned()
    } else if let Some((_, similar)) = error.split_once("An option with a similar name exists: ") {
        format!(" (it has an option that is not known; one with a similar name is `{similar}`)")
    } else if error.ends_with("is an invalid option") {
        " (it has an option that is not known)".to_owned()
    } else if SAFE.iter().any(|safe| said.starts_with(safe)) {
        format!(" ({said})")
    } else {
        String::new()
    };
    Err(StoreError::new(
        StoreErrorKind::Unsupported,
        format!(
            "the MongoDB address is not understood{reason}; write {EXAMPLE}, with special characters in user and \
             password percent-encoded"
        ),
    ))
}
