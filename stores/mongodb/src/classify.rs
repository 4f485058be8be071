//! [`Fault`]: the meaning of an error for the call.

use lock_core::store::{StoreError, StoreErrorKind};
use mongodb::bson::Document;
use mongodb::error::{Error, ErrorKind, TRANSIENT_TRANSACTION_ERROR};

/// The name of the database in errors.
pub(crate) const DATABASE: &str = "MongoDB";

/// Why something was not done.
#[derive(Debug)]
pub(crate) enum Fault {
    /// Nothing was done; a retry may succeed. Contains the server's message.
    Again(String),
    /// Any other error.
    Failed(StoreError),
}

impl Fault {
    /// Returns the fault as an error.
    pub(crate) fn error(self) -> StoreError {
        match self {
            Self::Again(text) => StoreError::new(StoreErrorKind::NotReady, text),
            Self::Failed(error) => error,
        }
    }
}

impl From<StoreError> for Fault {
    fn from(error: StoreError) -> Self {
        Self::Failed(error)
    }
}

/// When an error happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum During {
    /// During a command that writes nothing, or only in a transaction.
    Work,
    /// During a write, or a commit: only an answer says whether it was done.
    Commit,
}

#[derive(Clone, Copy)]
enum Meaning {
    /// Not executed, because of another transaction, or on this server; a retry may succeed.
    Again,
    /// Interrupted.
    Lost,
    Kind(StoreErrorKind),
}

/// Returns the fault of a command during which `error` happened.
pub(crate) fn fault(error: &Error, during: During) -> Fault {
    let meaning = match &*error.kind {
        ErrorKind::Command(_) if error.contains_label(TRANSIENT_TRANSACTION_ERROR) => Meaning::Again,
        ErrorKind::Command(error) => of_code(error.code),
        // Not sent: another command has found that the server is not what it was.
        ErrorKind::ConnectionPoolCleared { .. } => Meaning::Again,
        ErrorKind::ServerSelection { .. } | ErrorKind::DnsResolve { .. } => {
            Meaning::Kind(StoreErrorKind::Unreachable)
        }
        ErrorKind::Authentication { .. } => Meaning::Kind(StoreErrorKind::Denied),
        ErrorKind::InvalidArgument { .. }
        | ErrorKind::InvalidTlsConfig { .. }
        | ErrorKind::IncompatibleServer { .. }
        | ErrorKind::SessionsNotSupported => Meaning::Kind(StoreErrorKind::Unsupported),
        ErrorKind::Bson(_) => Meaning::Kind(StoreErrorKind::ForeignData),
        _ => Meaning::Lost,
    };
    of(meaning, during, format!("{DATABASE}: {}", short(&error.kind.to_string())))
}

/// Returns the fault of a command that writes nothing, or only in a transaction.
#[expect(clippy::needless_pass_by_value, reason = "for `map_err`")]
pub(crate) fn failed(error: Error) -> Fault {
    fault(&error, During::Work)
}

/// Returns the fault of a commit. The driver may have sent it twice, to two primaries, so that its
/// outcome is known only if the server says that nothing is left of the transaction.
pub(crate) fn fault_of_commit(error: &Error) -> Fault {
    let text = format!("{DATABASE}: {}", error.kind);
    if error.contains_label(TRANSIENT_TRANSACTION_ERROR) {
        return Fault::Again(text);
    }
    StoreError::new(StoreErrorKind::Unanswered, text).into()
}

/// Leaves out what the driver says of an error beside the error.
fn short(text: &str) -> String {
    const END: &str = "server response: None";
    let mut pieces = text.split(", labels: ");
    let mut short = pieces.next().unwrap_or_default().replace("Error: Kind: ", "Error: ");
    for piece in pieces {
        short += piece.split_once(END).map_or(piece, |(_, rest)| rest);
    }
    short
}

fn of(meaning: Meaning, during: During, text: String) -> Fault {
    match meaning {
        Meaning::Again => Fault::Again(text),
        Meaning::Lost if during == During::Work => Fault::Again(text),
        Meaning::Lost => StoreError::new(StoreErrorKind::Unanswered, text).into(),
        Meaning::Kind(kind) => StoreError::new(kind, text).into(),
    }
}

/// Returns the answer, unless it says that something was not done, or is not known to be kept.
pub(crate) fn answered(answer: Document, during: During) -> Result<Document, Fault> {
    if let Ok(error) = answer.get_document("writeConcernError") {
        // It is done, and a new primary may not know of it.
        let said = error.get_str("errmsg").unwrap_or("write concern error");
        return Err(StoreError::new(StoreErrorKind::Unanswered, format!("{DATABASE}: {said}")).into());
    }
    let first = answer.get_array("writeErrors").ok().and_then(|errors| errors.first()?.as_document());
    if let Some(error) = first {
        let (code, said) = (error.get_i32("code").unwrap_or(0), error.get_str("errmsg").unwrap_or_default());
        return Err(of(of_code(code), during, format!("{DATABASE}: {said}")));
    }
    Ok(answer)
}

/// Classifies an error code:
/// <https://github.com/mongodb/mongo/blob/master/src/mongo/base/error_codes.yml>.
fn of_code(code: i32) -> Meaning {
    match code {
        // Undone because of another transaction, or of another insert of the same document.
        24 | 46 | 112 | 117 | 225 | 244 | 246 | 251 | 267 | 11000 => Meaning::Again,
        // Not the primary.
        10058 | 10107 | 13435 | 13436 => Meaning::Again,
        // The collection is being made or dropped.
        26 | 48 => Meaning::Again,
        // The server steps down or shuts down, the time is over, or an operator has interrupted it.
        50 | 64 | 89 | 91 | 189 | 262 | 290 | 6 | 7 | 9001 | 11600..=11602 => Meaning::Lost,
        // Rights, account, password.
        13 | 18 | 31 | 8000 => Meaning::Kind(StoreErrorKind::Denied),
        // Disk or memory, or too many connections.
        39 | 14031 | 146 => Meaning::Kind(StoreErrorKind::Full),
        202 => Meaning::Kind(StoreErrorKind::NotReady),
        // The server has no such command or option.
        2 | 9 | 20 | 59 | 72 | 73 | 79 | 115 | 168 | 263 | 16410 | 40324 | 40573 => {
            Meaning::Kind(StoreErrorKind::Unsupported)
        }
        // A field has another type than ours.
        14 | 16554..=16556 | 16020 | 34471 | 40485 => Meaning::Kind(StoreErrorKind::ForeignData),
        _ => Meaning::Kind(StoreErrorKind::Refused),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_is_told_without_what_the_driver_adds() {
        let said = "No available servers. Topology: { Servers: [ { Address: a:1, Error: Kind: I/O error: refused, labels: \
                    {\"RetryableError\"}, source: None, server response: None }, { Address: b:1 } ] }";
        let told = "No available servers. Topology: { Servers: [ { Address: a:1, Error: I/O error: refused }, { Address: b:1 } ] }";
        assert_eq!(short(said), told);
    }
}
