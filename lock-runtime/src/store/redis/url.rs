//! `redis://` and `rediss://` addresses.

use crate::store::{StoreError, StoreErrorKind};

/// A client for `redis://[user[:password]@]host[:port][/db]`, or the same with `rediss://` for TLS.
///
/// # Errors
///
/// `Unsupported`, without the password, when the text is something else or when TLS is not compiled in.
pub(crate) fn client(url: &str) -> Result<redis::Client, StoreError> {
    let refuse = |what: &str| {
        let message = format!("the store address {:?} {what}", redacted(url));
        Err(StoreError::new(StoreErrorKind::Unsupported, message))
    };
    let Some((scheme, _)) = url.split_once("://") else {
        return refuse("has no scheme; write redis://host:port or rediss://host:port");
    };
    match scheme {
        "redis" => {}
        "rediss" if cfg!(any(feature = "tls-rustls", feature = "tls-native")) => {}
        "rediss" => {
            return refuse("needs TLS; switch on the feature `tls-rustls` or `tls-native` of lock-runtime");
        }
        _ => return refuse("is not for the Redis store; it takes redis:// and rediss://"),
    }
    match redis::Client::open(url) {
        Ok(client) => Ok(client),
        Err(error) => {
            let reason = error.detail().map_or_else(
                || error.to_string(),
                |_| {
                    // Details may quote the address.
                    error.category().to_owned()
                },
            );
            refuse(&format!(
                "is not understood ({reason}); write redis://user:password@host:port/db, with special \
                             characters in user and password percent-encoded"
            ))
        }
    }
}

/// Where sentinels are, and how to connect to what they name.
#[derive(Clone)]
pub(crate) struct Sentinels {
    pub(crate) peers: Vec<redis::ConnectionInfo>,
    pub(crate) master: String,
    pub(crate) template: redis::ConnectionInfo,
}

/// `url` without what is before the last `@` and after a `?` or `#`, where secrets may be.
pub(crate) fn redacted(url: &str) -> String {
    let (scheme, rest) = match url.split_once("://") {
        Some((scheme, rest)) => (format!("{scheme}://"), rest),
        None => (String::new(), url),
    };
    match rest.rsplit_once('@') {
        Some((_, place)) => {
            let place = place.split(['?', '#']).next().unwrap_or_default();
            format!("{scheme}***@{place}")
        }
        None => format!("{scheme}{}", rest.split(['?', '#']).next().unwrap_or_default()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn user_password_and_database_are_read() {
        let client = client("redis://ann:hun%40ter2@example.org:7000/3").unwrap();
        let info = client.get_connection_info();
        assert_eq!(info.addr().to_string(), "example.org:7000");
        assert_eq!(info.redis_settings().username(), Some("ann"));
        assert_eq!(info.redis_settings().password(), Some("hun@ter2"));
        assert_eq!(info.redis_settings().db(), 3);
    }

    #[test]
    fn secrets_are_never_in_errors() {
        for url in [
            "redis://:hunter2@",
            "redis://ann:hunter2@host:port/",
            "redis://ann:hunter2@host/nodb",
            "redis://:hun/hunter2@host:1/",
            "redis://:hun@hunter2@host:99999/",
            "http://ann:hunter2@host/",
            "ann:hunter2@host",
            "redis://host:port/?password=hunter2",
            "unix:///tmp/x.sock?pass=hunter2",
            "redis+sentinel://:hunter2@host",
        ] {
            let error = client(url).unwrap_err();
            assert_eq!(error.kind(), StoreErrorKind::Unsupported, "{url}");
            assert!(!format!("{error} {error:?}").contains("hunter2"), "{error}");
        }
    }

    #[cfg(not(any(feature = "tls-rustls", feature = "tls-native")))]
    #[test]
    fn tls_without_the_feature_names_the_features() {
        let error = client("rediss://ann:hunter2@host:6380").unwrap_err().to_string();
        assert!(error.contains("tls-rustls") && error.contains("tls-native"), "{error}");
        assert!(!error.contains("hunter2"));
    }

    #[cfg(any(feature = "tls-rustls", feature = "tls-native"))]
    #[test]
    fn tls_addresses_are_read() {
        assert!(client("rediss://ann:hunter2@host:6380").is_ok());
    }
}
