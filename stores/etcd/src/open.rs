//! [`EtcdStore`]: how etcd is opened, and which versions are good.

use std::sync::Arc;
use std::time::Duration;

use lock_core::store::{Abilities, StoreError, StoreErrorKind};
use lock_store_sequences::{ABILITIES as OF_SEQUENCES, Address, Files, Sequences, Settings};
use tonic::transport::Endpoint;

use crate::client::{Client, Login};
use crate::names::Tokens;
use crate::steps::Etcd;
use crate::tls;

/// One manager's handle on a cluster of etcd.
pub type EtcdStore = Sequences<Etcd>;

/// The port of etcd.
const PORT: u16 = 2379;

/// The features of locks in etcd.
const ABILITIES: Abilities = Abilities {
    name: "the etcd store",
    // Entries of a process that has died end with its lease.
    waiter_life: Duration::from_secs(3),
    ..OF_SEQUENCES
};

/// The first good patch of each minor version of etcd 3. An older one may answer a heartbeat of a
/// lease that has ended (etcd-io/etcd#20813), or end a living lease when its leader was paused
/// (etcd-io/etcd#15247).
const GOOD: [(u32, u32); 3] = [(4, 38), (5, 23), (6, 5)];

/// The address of a cluster.
#[derive(Clone, Debug)]
pub struct Target {
    endpoints: Vec<Endpoint>,
    login: Option<Login>,
    root: String,
    tokens: Tokens,
    /// For `etcds://`.
    tls: Option<Files>,
}

impl Target {
    /// Reads `etcd://[user:password@]h1[:2379],h2[:port]/[prefix][?tokens=revision]`, or `etcds://…`
    /// with TLS and the options `ca=FILE`, `cert=FILE` and `key=FILE`.
    ///
    /// # Errors
    ///
    /// [`StoreErrorKind::Unsupported`] with a text that has no part of the address, because that
    /// may be a secret.
    pub fn parse(url: &str) -> Result<Self, StoreError> {
        let Address { scheme, login, hosts, path, options } =
            Address::parse(url, &["etcd", "etcds"]).map_err(refused)?;
        let mut tls = (scheme == "etcds").then(Files::default);
        let mut tokens = None;
        for (name, value) in options {
            match (name.as_str(), &mut tls) {
                ("tokens", _) if tokens.is_some() => return Err(refused("has an option twice")),
                ("tokens", _) if value == "revision" => tokens = Some(Tokens::Revisions),
                ("tokens", _) => return Err(refused("has `tokens` that are not `revision`")),
                (_, Some(tls)) => {
                    let unknown =
                        "has an option that is not known: there are `ca`, `cert`, `key` and `tokens`";
                    tls.set(&name, value).unwrap_or(Err(unknown)).map_err(refused)?;
                }
                (_, None) => {
                    return Err(refused("has an option that is not `tokens`; others need `etcds://`"));
                }
            }
        }
        tls.as_ref().map_or(Ok(()), Files::check).map_err(refused)?;
        let scheme = if tls.is_some() { "https" } else { "http" };
        let endpoints = hosts.into_iter().map(|(name, port)| {
            let url = format!("{scheme}://{name}:{}", port.unwrap_or(PORT));
            Endpoint::from_shared(url).map_err(|_| refused("has a bad host"))
        });
        let endpoints = endpoints.collect::<Result<_, _>>()?;
        let login = login.map(|(user, password)| Login { user, password });
        Ok(Self { endpoints, login, root: path, tokens: tokens.unwrap_or_default(), tls })
    }
}

fn refused(why: &str) -> StoreError {
    let text = format!(
        "the etcd address is not understood: it {why}; write `etcd://user:password@h1:2379,h2,h3/prefix`, or \
         `etcds://…` with TLS, with special characters percent-encoded"
    );
    StoreError::new(StoreErrorKind::Unsupported, text)
}

/// Opens etcd. Reads the files of certificates, and connects on first use.
///
/// # Errors
///
/// [`StoreErrorKind::Unsupported`] when a file can't be used.
pub fn open(target: Target, settings: &Settings) -> Result<Arc<EtcdStore>, StoreError> {
    let Target { endpoints, login, root, tokens, tls } = target;
    let endpoints = match tls {
        Some(files) => tls::apply(&files, endpoints)?,
        None => endpoints,
    };
    let most_tokens = match tokens {
        Tokens::Scaled => ABILITIES.most_tokens,
        Tokens::Revisions => 1,
    };
    let abilities = Abilities { most_tokens, ..ABILITIES };
    let etcd = Etcd::new(Client::new(endpoints, login), root.clone(), tokens, abilities);
    let prefix = format!("{root}{}", settings.prefix);
    Ok(Arc::new(Sequences::new(etcd, Settings { prefix, ..settings.clone() })))
}

/// Refuses servers that are too old, and warns of those with known defects.
pub(crate) fn check_version(version: &str) -> Result<(), StoreError> {
    if let Some(good) = known_defect(version)? {
        tracing::warn!(
            target: "lock_runtime::store",
            "etcd {version} may answer a heartbeat of a lease that has ended, so that two hold a lock: \
             install etcd {good} or newer",
        );
    }
    Ok(())
}

/// Returns the first good patch after a version with known defects.
pub(crate) fn known_defect(version: &str) -> Result<Option<String>, StoreError> {
    let mut parts = version.split(['.', '-', '+']).map(|part| part.parse::<u32>().unwrap_or(0));
    let mut part = || parts.next().unwrap_or(0);
    let (major, minor, patch) = (part(), part(), part());
    if (major, minor) < (3, 4) {
        let text = format!("the server is etcd {version}; locks need etcd 3.4 or newer");
        return Err(StoreError::new(StoreErrorKind::Unsupported, text));
    }
    let good = GOOD.iter().find(|(of, good)| major == 3 && *of == minor && patch < *good);
    Ok(good.map(|(_, good)| format!("3.{minor}.{good}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECRET: &str = "hunter2";

    #[track_caller]
    fn parsed(url: &str) -> (Vec<String>, Option<(String, String)>, String) {
        let Target { endpoints, login, root, .. } = Target::parse(url).unwrap();
        let login = login.map(|login| (login.user, login.password));
        (endpoints.iter().map(|endpoint| endpoint.uri().to_string()).collect(), login, root)
    }

    #[test]
    fn addresses_are_read() {
        for (url, hosts, login, root) in [
            ("etcd://h", &["http://h:2379/"][..], None, ""),
            ("etcd://h/", &["http://h:2379/"], None, ""),
            (
                "etcd://h:1, 10.0.0.1 ,c-d.e_f:65535/a/b/",
                &["http://h:1/", "http://10.0.0.1:2379/", "http://c-d.e_f:65535/"],
                None,
                "a/b/",
            ),
            ("etcd://[::1],[fe80::2]:3/", &["http://[::1]:2379/", "http://[fe80::2]:3/"], None, ""),
            ("etcds://h?ca=a.pem", &["https://h:2379/"], None, ""),
            ("etcds://h/x?ca=a&cert=b&key=c%2Fd", &["https://h:2379/"], None, "x"),
            ("etcds://h/x?tokens=revision&ca=a", &["https://h:2379/"], None, "x"),
            ("etcd://h/x?tokens=revision", &["http://h:2379/"], None, "x"),
            (
                "etcd://a%6en:%40%2f%3F%25%c3%BC:@h/%e2%82%ac%2f",
                &["http://h:2379/"],
                Some(("ann", "@/?%ü:")),
                "€/",
            ),
        ] {
            let hosts = hosts.iter().map(ToString::to_string).collect();
            let login = login.map(|(user, password): (&str, &str)| (user.to_owned(), password.to_owned()));
            assert_eq!(parsed(url), (hosts, login, root.to_owned()), "{url:?}");
        }
    }

    #[test]
    fn an_address_that_is_none_is_refused_and_its_password_not_shown() {
        for (url, said) in [
            ("hunter2", "another scheme"),
            ("http://hunter2@h", "another scheme"),
            ("etcd:hunter2@h", "another scheme"),
            ("etcd://", "an empty host"),
            ("etcd:///hunter2", "an empty host"),
            ("etcd://a,,b/x", "an empty host"),
            ("etcd://ann:hunter2@/x", "an empty host"),
            ("etcd://hunter2@h", "a user without a password"),
            ("etcd://hunter2:@h", "a user without a password"),
            ("etcd://:hunter2@h", "a password without a user"),
            ("etcd://ann:hunter2@h:0", "a bad port"),
            ("etcd://ann:hunter2@h:65536", "a bad port"),
            ("etcd://ann:hunter2@h:+1", "a bad port"),
            ("etcd://ann:hunter2@h:", "a bad port"),
            ("etcd://ann:hunter2", "a bad port"),
            ("etcd://ann:hunter2@[::1]2379", "a bad host"),
            ("etcd://ann:hunter2@[::1]:x", "a bad port"),
            ("etcd://ann:hunter2@::1", "a bad port"),
            ("etcd://ann:hunter2@:2379", "a bad host"),
            ("etcd://[hunter2]:2379", "a bad host"),
            ("etcd://[::1", "a bad port"),
            ("etcd://hunter%32", "a bad host"),
            ("etcd://ann:1@hunter 2@h", ""),
            ("etcd://ann:1/hunter2@h", "an `@` behind"),
            ("etcd://ann:1?hunter2@h", "an `@` behind"),
            ("etcds://ann:1?ca=hunter2@h", "an `@` behind"),
            ("etcd://ann:1#hunter2@h", "a `#`"),
            ("etcd://ann:hunter2%4@h", "`%` without two hex digits"),
            ("etcd://ann:hunter2%+4@h", "`%` without two hex digits"),
            ("etcd://h/hunter2%ff", "bytes that are no text"),
            ("etcd://h/x?", "not `tokens`"),
            ("etcd://h/x?ca=hunter2", "not `tokens`"),
            ("etcd://h/x?tokens=hunter2", "not `revision`"),
            ("etcd://h/x?tokens=revision&tokens=revision", "an option twice"),
            ("etcds://h/x?", "an option that is not known"),
            ("etcds://h/x?hunter2=1", "an option that is not known"),
            ("etcds://h/x?CA=hunter2", "an option that is not known"),
            ("etcds://h/x?hunter2", "an option that is not known"),
            ("etcds://h/x?ca", "an option without a value"),
            ("etcds://h/x?ca=hunter2&key=", "an option without a value"),
            ("etcds://h/x?ca=hunter2&ca=b", "an option twice"),
            ("etcds://h/x?cert=hunter2", "`cert` without `key`"),
            ("etcds://h/x?key=hunter2&ca=b", "`key` without `cert`"),
        ] {
            match Target::parse(url) {
                Ok(_) => assert_eq!(said, "", "{url:?} is taken"),
                Err(error) => {
                    let shown = format!("{error} {error:?}");
                    assert!(shown.contains(said) && !said.is_empty(), "{url:?}: {error}");
                    assert!(!shown.contains(SECRET), "{url:?}: {error}");
                    assert_eq!(error.kind(), StoreErrorKind::Unsupported, "{url:?}");
                }
            }
        }
        let target = Target::parse("etcd://ann:hunter2@h/x").unwrap();
        assert!(!format!("{target:?}").contains(SECRET));
    }

    #[test]
    fn only_versions_with_locks_that_work_are_taken_without_a_warning() {
        for version in ["3.3.27", "3.3.0-rc.1", "2.3.8", "", "x.y.z"] {
            let error = check_version(version).unwrap_err();
            assert_eq!(error.kind(), StoreErrorKind::Unsupported, "{version}");
            assert!(error.to_string().contains("3.4 or newer"), "{error}");
        }
        for (version, is_warned) in [
            ("3.4.0", Some("3.4.38")),
            ("3.4.37", Some("3.4.38")),
            ("3.4.38", None),
            ("3.5.22", Some("3.5.23")),
            ("3.5.23", None),
            ("3.6.0-rc.5", Some("3.6.5")),
            ("3.6.5+git", None),
            ("3.7.0", None),
            ("4.0.0", None),
        ] {
            assert_eq!(
                known_defect(version).map_err(|error| error.to_string()),
                Ok(is_warned.map(str::to_owned)),
                "{version}"
            );
        }
    }
}
