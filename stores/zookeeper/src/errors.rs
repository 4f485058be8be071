//! The errors of ZooKeeper's client, as the store's.

use lock_core::store::{StoreError, StoreErrorKind};
use zookeeper_client::Error;

/// Whether the session has ended.
pub(crate) const fn is_over(error: &Error) -> bool {
    matches!(error, Error::SessionExpired | Error::ClientClosed)
}

/// Returns the error of a read, which has changed nothing.
pub(crate) fn of_read(error: &Error) -> StoreError {
    let kind = match refusal(error) {
        Some(kind) => kind,
        None => StoreErrorKind::Unreachable,
    };
    StoreError::new(kind, text(error))
}

/// Returns the error of a write, which may have been executed.
pub(crate) fn of_write(error: &Error) -> StoreError {
    let kind = match refusal(error) {
        Some(kind) => kind,
        None => StoreErrorKind::Unanswered,
    };
    StoreError::new(kind, text(error))
}

/// Returns the error of a session that could not begin.
pub(crate) fn of_connect(error: &Error) -> StoreError {
    let kind = match error {
        Error::AuthFailed => StoreErrorKind::Denied,
        _ => StoreErrorKind::Unreachable,
    };
    let text = match error {
        Error::NoHosts => {
            "no server of the ensemble could be reached; the log of `zookeeper_client` at the level `debug` has the \
             reasons"
                .to_owned()
        },
        _ => text(error),
    };
    StoreError::new(kind, text)
}

/// Returns the kind of an error that shows that nothing was executed.
fn refusal(error: &Error) -> Option<StoreErrorKind> {
    Some(match error {
        Error::NoAuth | Error::AuthFailed | Error::InvalidAcl => StoreErrorKind::Denied,
        Error::NotReadOnly => StoreErrorKind::ReadOnly,
        Error::QuotaExceeded => StoreErrorKind::Full,
        Error::Throttled | Error::SessionMoved | Error::SessionExpired | Error::ClientClosed => {
            StoreErrorKind::NotReady
        }
        Error::NoChildrenForEphemerals => StoreErrorKind::ForeignData,
        Error::Unimplemented => StoreErrorKind::Unsupported,
        Error::NoNode
        | Error::BadVersion
        | Error::NodeExists
        | Error::NotEmpty
        | Error::BadArguments(_)
        | Error::MarshallingError => StoreErrorKind::Refused,
        _ => return None,
    })
}

fn text(error: &Error) -> String {
    match error {
        Error::NoAuth => "ZooKeeper: not authorized; the user needs the rights create, delete, read and write \
                          on the nodes of locks"
            .to_owned(),
        Error::NoChildrenForEphemerals => {
            "ZooKeeper: the name of the lock goes through an ephemeral node, which has no children; use another \
             name"
                .to_owned()
        }
        Error::Unimplemented => "ZooKeeper: the server is too old; locks need ZooKeeper 3.5 or newer".to_owned(),
        _ => format!("ZooKeeper: {error}"),
    }
}

/// Returns the error of a step whose outcome is not known.
pub(crate) fn unanswered(error: &StoreError) -> StoreError {
    StoreError::new(StoreErrorKind::Unanswered, error.to_string())
}
