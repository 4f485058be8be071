//! Conversion of [`LockError`] into [`tonic::Status`], so that a method can return errors of
//! annotated functions with `?`.

use std::sync::Arc;

use tonic::{Code, Status};

use super::refusal::{PUSHBACK, Protocol, Refusal, details, pushback};
use crate::error::LockError;

/// Converts with the codes of [`Reason::grpc_code`](super::Reason::grpc_code). The message for the
/// client contains neither the key nor the store's error. The error itself is the status's
/// `source`, for logs. A misconfiguration is logged as an error.
#[cfg_attr(docsrs, doc(cfg(feature = "tonic")))]
impl From<LockError> for Status {
    fn from(error: LockError) -> Self {
        let refusal = Refusal::of_handler(&error, Protocol::Grpc);
        let code = Code::from_i32(refusal.grpc_code());
        let mut status = Self::with_details(code, refusal.detail(), details(&refusal).into());
        if let Some(millis) = pushback(&refusal) {
            status.metadata_mut().insert(PUSHBACK, millis.into());
        }
        status.set_source(Arc::new(error));
        status
    }
}

#[cfg(test)]
mod tests {
    use std::error::Error;

    use super::*;
    use crate::layer::{ProblemDetails, Reason, Refuse};
    use lock_core::LockKey;
    use lock_engine::failure::Loss;

    /// The code tells the client what to do; the key stays on the server, in the source.
    #[test]
    fn errors_are_statuses() {
        let key = || LockKey::new("s3cret").unwrap();
        for (error, code) in [
            (LockError::Busy { key: key(), remaining: None }, Code::Aborted),
            (
                LockError::TimedOut { key: key(), waited: std::time::Duration::ZERO, remaining: None },
                Code::ResourceExhausted,
            ),
            (LockError::ShutDown { key: key() }, Code::Unavailable),
            (LockError::Lost { key: key(), why: Loss::TakenAway }, Code::Aborted),
            (LockError::Misconfigured { reason: "s3cret".into() }, Code::Internal),
        ] {
            let status = Status::from(error);
            assert_eq!(status.code(), code);
            assert!(!status.message().contains("s3cret"));
            let headers = status.clone().into_http::<()>().into_parts().0.headers;
            assert!(!format!("{headers:?}").contains("s3cret"));
            assert!(status.source().unwrap().to_string().contains("s3cret"));
        }
    }

    /// tonic's clients can read the layer's handwritten refusals.
    #[test]
    fn refusals_are_read_as_statuses() {
        let refusal = Refusal::new(Reason::TimedOut, Protocol::Grpc)
            .with_detail("100 %, später")
            .with_retry_after(std::time::Duration::from_secs(2));
        let status = Status::from_header_map(ProblemDetails.refuse(&refusal).headers()).unwrap();
        assert_eq!((status.code(), status.message()), (Code::ResourceExhausted, "100 %, später"));
        assert_eq!(status.metadata().get("grpc-retry-pushback-ms").unwrap(), "2000");
    }
}
