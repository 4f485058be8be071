//! A bad key, duration or URL is refused at once; the error says what to write instead, without
//! secrets.

use std::time::Duration;

use lock_runtime::{
    ConnectError, InvalidKey, Lock, LockError, LockKey, LockManager, LockManagerBuilder, Replication,
    TokenRetention,
};

const SECRET: &str = "hunter2";
const NANOSECOND: Duration = Duration::from_nanos(1);
const SECOND: Duration = Duration::from_secs(1);
const EONS: Duration = Duration::from_secs(u64::MAX);
const MAX: Duration = Duration::MAX;

/// A setting or a request, and a part of the reason why it is refused; `""` if it is accepted.
type Row<T> = (T, &'static str);

fn keys() -> Vec<Row<String>> {
    let longest = LockKey::LONGEST;
    let mut rows = vec![
        ("k".repeat(longest), ""),
        ("k".repeat(longest + 1), "4096 bytes"),
        // Characters of two and three bytes: the limit counts bytes, and the error cuts between
        // characters.
        ("ü".repeat(longest / 2), ""),
        ("ü".repeat(longest / 2 + 1), "4096 bytes"),
        (format!("x{}", "€".repeat(longest / 3)), ""),
        (format!("xx{}", "€".repeat(longest / 3)), "4096 bytes"),
    ];
    rows.extend(
        [
            ("", "empty"),
            ("\0", "control character"),
            ("a\0b", "control character"),
            ("a\nb", "control character"),
            ("a\rb", "control character"),
            ("\u{1b}[31m", "control character"),
            ("\u{7f}", "control character"),
            ("\u{85}", "control character"),
            ("{}", "hash tag `{}` is empty"),
            ("{}x", "hash tag `{}` is empty"),
            ("{", "one hash tag"),
            ("}", "one hash tag"),
            ("}{", "not a hash tag"),
            ("x}{y", "not a hash tag"),
            ("{a}{b}", "one hash tag"),
            ("{{a}}", "one hash tag"),
            ("{a{b}", "one hash tag"),
            ("{a}}", "one hash tag"),
            ("{a}", ""),
            ("{ü}", ""),
            ("ü", ""),
            ("€uro:1", ""),
            ("𝄞", ""),
            ("a b", ""),
        ]
        .map(|(key, said)| (key.to_owned(), said)),
    );
    rows
}

fn assert_refused(what: &str, reason: &str, said: &str) {
    assert!(!said.is_empty(), "{what} was refused: {reason}");
    assert!(reason.contains(said), "{what}: {reason}");
}

#[tokio::test(start_paused = true)]
async fn a_text_that_is_no_key_is_refused_with_a_reason() {
    let locks = LockManager::connect("memory:").await.unwrap();
    let on = |error: InvalidKey, key: &str, said: &str| {
        assert_refused(&format!("{key:?}"), error.reason(), said);
        assert!(key.starts_with(error.text().trim_end_matches('…')), "{key:?}: {error}");
        let shown = error.to_string();
        assert!(shown.len() < 2500 && !shown.contains(char::is_control), "{shown}");
    };
    for (key, said) in keys() {
        match LockKey::new(&key) {
            Ok(_) => assert_eq!(said, "", "{key:?} is a key"),
            Err(error) => on(error, &key, said),
        }
        for lock in [
            locks.mutex(&key),
            locks.fair(&key),
            locks.read(&key),
            locks.write(&key),
            locks.multi(["another", &*key]),
        ] {
            match lock.no_wait().acquire().await {
                Ok(guard) => {
                    assert_eq!(said, "", "{key:?} was locked");
                    guard.release().await.unwrap();
                }
                Err(LockError::InvalidKey(error)) => on(error, &key, said),
                Err(error) => panic!("{key:?}: {error:?}"),
            }
        }
        match locks.status(&key).await {
            Ok(_) => assert_eq!(said, "", "{key:?} has a status"),
            Err(lock_runtime::LockError::InvalidKey(error)) => on(error, &key, said),
            Err(error) => panic!("{key:?}: {error:?}"),
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_prefix_that_leaves_no_room_for_a_key_is_refused() {
    for (prefix, said) in [
        ("p".repeat(LockKey::LONGEST), "4096 bytes"),
        ("p".repeat(LockKey::LONGEST - 1), ""),
        ("\0".to_owned(), "control character"),
        ("{}".to_owned(), "hash tag `{}` is empty"),
        ("}{".to_owned(), "hash tag"),
    ] {
        match LockManager::builder().prefix(&prefix).connect_lazy("memory:") {
            Ok(_) => assert_eq!(said, ""),
            Err(ConnectError::Misconfigured { reason }) => {
                assert_refused("the prefix", &reason, said);
                assert!(reason.len() < 600, "a text to be read: {} bytes", reason.len());
            }
            Err(error) => panic!("{error:?}"),
        }
    }
}

type Setting = (&'static str, fn(LockManagerBuilder, Duration) -> LockManagerBuilder);

#[tokio::test(start_paused = true)]
async fn a_manager_refuses_durations_that_make_no_sense_and_works_with_the_others() {
    const DURATIONS: [Duration; 4] = [Duration::ZERO, NANOSECOND, EONS, MAX];
    // A part of the reason for each of the durations.
    let rows: [(Setting, [&str; 4]); 10] = [
        (("lease", LockManagerBuilder::lease), ["too short", "too short", "too long", "too long"]),
        (("default_wait", LockManagerBuilder::default_wait), [""; 4]),
        (("call_timeout", LockManagerBuilder::call_timeout), ["too short", "too short", "", ""]),
        (("connect_timeout", LockManagerBuilder::connect_timeout), ["too short", "too short", "", ""]),
        (("cohort_window", LockManagerBuilder::cohort_window), [""; 4]),
        (("subscription_linger", LockManagerBuilder::subscription_linger), [""; 4]),
        (("fallback_poll", LockManagerBuilder::fallback_poll), ["without pause", "without pause", "", ""]),
        (
            ("token_retention", |b, d| b.token_retention(TokenRetention::For(d))),
            ["too short", "too short", "", ""],
        ),
        (("max_lease", LockManagerBuilder::max_lease), [""; 4]),
        (("replication", |b, d| b.replication(Replication::at_least(0, d))), [""; 4]),
    ];
    for ((name, set), said) in rows {
        for (duration, said) in DURATIONS.into_iter().zip(said) {
            let what = format!("{name} of {duration:?}");
            match set(LockManager::builder(), duration).connect("memory:").await {
                Ok(locks) => {
                    assert_eq!(said, "", "{what} is taken");
                    let guard =
                        locks.mutex("k").acquire().await.unwrap_or_else(|error| panic!("{what}: {error}"));
                    assert!(locks.mutex("k").no_wait().acquire().await.is_err(), "{what}");
                    guard.release().await.unwrap_or_else(|error| panic!("{what}: {error}"));
                }
                Err(ConnectError::Misconfigured { reason }) => assert_refused(&what, &reason, said),
                Err(error) => panic!("{what}: {error:?}"),
            }
        }
    }
    // A quorum needs a maximum lease.
    for most in [Duration::ZERO, NANOSECOND] {
        let url = "quorum:memory:bad-1|memory:bad-2|memory:bad-3";
        let error = LockManager::builder().max_lease(most).connect(url).await.unwrap_err();
        assert_refused("max_lease", &error.to_string(), "set `max_lease`");
    }
}

#[tokio::test(start_paused = true)]
async fn a_request_refuses_durations_that_make_no_sense_and_works_with_the_others() {
    type Ask = fn(Lock, Duration) -> Lock;
    let rows: [(&str, Ask, [Row<Duration>; 4]); 5] = [
        ("wait", Lock::wait, [(Duration::ZERO, ""), (NANOSECOND, ""), (EONS, ""), (MAX, "")]),
        (
            "lease",
            Lock::lease,
            [(Duration::ZERO, "too short"), (NANOSECOND, "too short"), (EONS, "too long"), (MAX, "too long")],
        ),
        (
            "max_hold",
            Lock::max_hold,
            [(Duration::ZERO, "at once"), (NANOSECOND, "at once"), (EONS, ""), (MAX, "")],
        ),
        (
            "min_hold",
            Lock::min_hold,
            [(Duration::ZERO, ""), (NANOSECOND, ""), (EONS, "too long"), (MAX, "too long")],
        ),
        (
            "replication",
            |lock, timeout| lock.replication(Replication::at_least(1, timeout)),
            [
                (Duration::ZERO, "no replica"),
                (NANOSECOND, "no replica"),
                (EONS, "no replica"),
                (MAX, "no replica"),
            ],
        ),
    ];
    let locks = LockManager::connect("memory:").await.unwrap();
    for (name, ask, rows) in rows {
        for (index, (duration, said)) in rows.into_iter().enumerate() {
            let what = format!("{name} of {duration:?}");
            for lock in [locks.mutex(format!("{name}-{index}")), locks.fair(format!("{name}-{index}-fair"))] {
                match ask(lock, duration).acquire().await {
                    Ok(guard) => {
                        assert_eq!(said, "", "{what} is taken");
                        guard.release().await.unwrap_or_else(|error| panic!("{what}: {error}"));
                    }
                    Err(LockError::Misconfigured { reason }) => assert_refused(&what, &reason, said),
                    Err(error) => panic!("{what}: {error:?}"),
                }
            }
        }
    }
    let guard = locks.mutex("extend").lease(SECOND).acquire().await.unwrap();
    for (lease, said) in
        [(Duration::ZERO, "too short"), (NANOSECOND, "too short"), (EONS, "too long"), (MAX, "too long")]
    {
        match guard.extend(lease).await {
            Err(LockError::Misconfigured { reason }) => assert_refused("extend", &reason, said),
            other => panic!("extend by {lease:?}: {other:?}"),
        }
    }
    guard.release().await.unwrap();
    let semaphore = locks.semaphore("permits");
    for lease in [Duration::ZERO, NANOSECOND, EONS, MAX] {
        match semaphore.clone().lease(lease).acquire().await {
            Err(LockError::Misconfigured { reason }) => assert!(reason.contains("too "), "{reason}"),
            other => panic!("{lease:?}: {other:?}"),
        }
    }
}

#[test]
fn the_time_out_of_replicas_is_a_whole_number_of_milliseconds_that_the_store_can_take() {
    let longest = Duration::from_millis(u32::MAX.into());
    for (asked, kept) in [
        (Duration::ZERO, Duration::from_millis(1)),
        (NANOSECOND, Duration::from_millis(1)),
        (EONS, longest),
        (MAX, longest),
    ] {
        for policy in [Replication::at_least(u32::MAX, asked), Replication::majority(asked)] {
            assert_eq!(policy.timeout(), kept, "{asked:?}");
        }
    }
}

/// Checks a table of URLs: no error repeats the URL with its secret.
fn check_urls(rows: &[Row<&str>]) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let _inside = runtime.enter();
    for &(url, said) in rows {
        match LockManager::connect_lazy(url) {
            Ok(_) => assert_eq!(said, "", "{url:?} is taken"),
            Err(error) => {
                let shown = format!("{error} {error:?}");
                assert!(!shown.contains(SECRET), "{url:?}: {error}");
                let ConnectError::Misconfigured { reason } = error else { panic!("{url:?}: {error:?}") };
                assert_refused(&format!("{url:?}"), &reason, said);
            }
        }
    }
}

#[test]
fn a_url_of_no_store_is_refused_with_those_that_there_are() {
    check_urls(&[
        ("", "`memory:`"),
        (" ", "`memory:`"),
        ("hunter2", "`memory:`"),
        ("MEMORY:", "`memory:`"),
        ("memory:", ""),
        ("memory:a/b", ""),
        ("memory://", "`memory:name`"),
        ("memory://hunter2", "`memory:name`"),
        ("REDIS://h", "can't begin with \"REDIS\""),
        ("http://ann:hunter2@h", "can't begin with \"http\""),
        ("unix:///tmp/x.sock?pass=hunter2", "can't begin with \"unix\""),
        // The password is in the place of the scheme.
        ("ann:hunter2://h", "`memory:`"),
        ("hunter2@h://y", "`memory:`"),
        ("redis:hunter2@h", "`//` is missing"),
        ("postgres:hunter2@h", "`//` is missing"),
        ("mssql://ann:hunter2@h/db", "can't begin with \"mssql\""),
        ("sqlite+postgres://ann:hunter2@h/db", "can't begin with"),
    ]);
}

#[test]
fn a_quorum_that_is_none_is_refused() {
    check_urls(&[
        ("quorum:", "one of the URLs of a quorum is empty"),
        ("quorum:memory:", "of one store"),
        ("quorum:memory:a|memory:b", "of 2 stores"),
        ("quorum:memory:|memory:|memory:|memory:", "of 4 stores"),
        ("quorum:memory:|memory:|memory:", ""),
        ("quorum:memory:a||memory:b", "is empty"),
        ("quorum:memory:a|memory:b|", "is empty"),
        ("quorum:memory:a|memory:b|memory:a", "twice"),
        ("quorum:quorum:memory:a|memory:b|memory:c", "can't contain another quorum"),
        ("quorum:memory:|memory:|http://ann:hunter2@h", "can't begin with \"http\""),
    ]);
}

/// Everything that was begun for the attempt is dropped in the caller's runtime, which must not
/// block on it.
#[tokio::test]
async fn an_address_that_is_refused_is_refused_with_a_thread_of_its_own_too() {
    let builder = LockManager::builder().dedicated_thread().lease(90 * SECOND);
    let refused = builder.connect("quorum:memory:a|memory:b|memory:c").await;
    let Err(ConnectError::Misconfigured { reason }) = refused else { panic!("{refused:?}") };
    assert_refused("the address", &reason, "max_lease");
}

#[cfg(feature = "redis")]
mod redis {
    use super::*;

    #[test]
    fn a_quorum_of_servers_has_each_of_them_once() {
        check_urls(&[
            ("quorum:redis://a|redis://b|memory:", "can't mix"),
            ("quorum:redis://a|redis+plain://b|redis://c", "can't mix `redis+plain`"),
            ("quorum:redis://a|redis://b|redis://c", ""),
            ("quorum:redis://a:1|redis://a:2|redis://a:3", ""),
            ("quorum:redis://a|redis://b|redis://a", "twice"),
            ("quorum:redis://a|redis://b|redis://A:6379/", "twice"),
            ("quorum:redis://localhost|redis://b|redis://127.0.0.1", "twice"),
            ("quorum:redis://[::1]:6380|redis://b|redis://localhost:6380", "twice"),
            ("quorum:redis://a/0|redis://b|redis://:hunter2@a/1", "twice"),
            ("quorum:redis+sentinel://s/m1|redis+sentinel://s/m2|redis+sentinel://s/m3", ""),
            ("quorum:redis+sentinel://s,t/m|redis+sentinel://t/m|redis+sentinel://u/m", "twice"),
            ("quorum:redis://a|redis://b|redis://:hunter2@c:port", "has a port"),
        ]);
    }

    #[test]
    fn a_place_that_is_none_is_refused_and_its_password_not_shown() {
        check_urls(&[
            ("redis://", "without a host"),
            ("redis:///0", "without a host"),
            ("redis://:0", "without a host"),
            ("redis://ann:hunter2@", "without a host"),
            ("redis+sentinel:///main", "without a host"),
            ("redis+sentinel://a,,b/main", "without a host"),
            ("redis+cluster://", "without a host"),
            ("redis+cluster://:hunter2@,b", "without a host"),
            ("redis://h:0", "from 1 to 65535"),
            ("redis://h:65536", "from 1 to 65535"),
            ("redis://h:65535", ""),
            ("redis://h:-1", "from 1 to 65535"),
            ("redis://h:+1", "from 1 to 65535"),
            ("redis://h:", "from 1 to 65535"),
            ("redis+sentinel://h:0/m", "from 1 to 65535"),
            ("redis+cluster://a,b:0", "from 1 to 65535"),
            // The `@` is missing, so the password is in the place of the port.
            ("redis://:hunter2", "without a host"),
            ("redis://ann:hunter2", "`@host` is missing"),
            ("redis+cluster://ann:hunter2,b", "`@host` is missing"),
            ("redis+sentinel://ann:hunter2/main", "`@host` is missing"),
            ("redis://::1", "in brackets"),
            ("redis://fe80::1:6379", "in brackets"),
            ("redis+sentinel://::1/m", "in brackets"),
            ("redis://[::1", "in brackets"),
            ("redis://[::1]", ""),
            ("redis+cluster://[::1],[::2]:7000", ""),
            ("redis://a,b", "several hosts"),
            ("redis://0.0.0.0", "wildcard"),
        ]);
    }

    #[test]
    fn characters_that_have_to_be_encoded_are_not_guessed_at() {
        check_urls(&[
            (" redis://h\n", ""),
            ("redis://h h", "a space"),
            ("redis://:hunter2 @h", "a space"),
            ("redis://:hunt\ner2@h", "control character"),
            ("redis://h\0", "control character"),
            ("redis+sentinel://h/m m", "a space"),
            ("redis://:hunter2%@h", "`%25`"),
            ("redis://:hunter2%zz@h", "`%25`"),
            ("redis://:hunter2%4@h", "`%25`"),
            ("redis://:hunter2%ü@h", "`%25`"),
            ("redis://:hunter2%25%40@h", ""),
            ("redis://:hunter2%ff@h", "UTF-8"),
            ("redis+sentinel://h/m?sentinel_password=hunter2%", "`%25`"),
            ("redis://:1#hunter2@h", "`%23`"),
            ("redis://ann:1?hunter2@h", "option"),
            ("redis://:hun/hunter2@h", "without a host"),
            ("redis://h#insecure", "`#insecure`"),
            ("redis+cluster://h#hunter2", "`#insecure`"),
        ]);
    }

    #[test]
    fn an_option_that_is_not_known_is_refused_with_those_that_are() {
        const OF_SENTINEL: &str = "`sentinel_pasword` that is not known; accepted are `sentinel_user`, \
                                   `sentinel_password`";
        check_urls(&[
            ("redis+sentinel://h/m?sentinel_pasword=hunter2", OF_SENTINEL),
            ("redis+sentinel://h/m?sentinel_user=ann&sentinel_password=hunter2", ""),
            ("redis+sentinel://h/m?sentinel_password", "without a value"),
            ("redis+sentinel://h/m?sentinel_password=hunter2&sentinel_password=x", "twice"),
            ("redis+cluster://h?sentinel_password=hunter2", "accepted are none"),
            ("redis+cluster://h?pasword=hunter2", "`pasword`"),
            ("redis://h?password=hunter2", "`password`"),
            ("redis://h?Hunter2=hunter2", "not known"),
            ("redis://h?hunter2", "not known"),
            ("redis://h?protocol=resp2", "RESP3 is always used"),
        ]);
    }

    #[test]
    fn a_topology_that_is_not_known_or_not_complete_is_refused() {
        check_urls(&[
            ("redis+ring://:hunter2@h", "redis+sentinel://"),
            ("redis-sentinel://:hunter2@h/m", "redis+sentinel://"),
            ("redis+Sentinel://h/m", "redis+sentinel://"),
            ("redis+unix:///tmp/x", "redis+sentinel://"),
            ("redis+sentinel+tls://h/m", "redis+sentinel://"),
            ("redis+sentinel://:hunter2@h", "does not name the primary"),
            ("redis+sentinel://h/", "does not name the primary"),
            ("redis+sentinel://h//0", "does not name the primary"),
            ("redis+cluster://:hunter2@h/1", "names a database"),
            ("redis+cluster://h/0", ""),
        ]);
    }

    #[tokio::test]
    async fn a_majority_of_an_unknown_number_of_replicas_is_refused() {
        let majority = || LockManager::builder().replication(Replication::majority(Duration::from_secs(1)));
        let error = majority().connect_lazy("redis://127.0.0.1:1").unwrap_err().to_string();
        assert!(error.contains("`replicas`"), "{error}");
        majority().replicas(2).connect_lazy("redis://127.0.0.1:1").unwrap();
        majority().connect_lazy("redis+cluster://127.0.0.1:1").unwrap();
        majority().connect_lazy("redis+sentinel://127.0.0.1:1/main").unwrap();
    }

    #[test]
    fn a_database_that_is_no_number_is_refused() {
        check_urls(&[
            ("redis://h/abc", "database number"),
            ("redis://h/-1", "database number"),
            ("redis://h/1/2", "database number"),
            ("redis://h/1.0", "database number"),
            ("redis://h/2147483648", "database number"),
            ("redis://h/99999999999999999999", "database number"),
            ("redis://h/2147483647", ""),
            ("redis://h/", ""),
            ("redis+sentinel://h/m/abc", "database number"),
            ("redis+sentinel://h/m/-1", "database number"),
            ("redis+sentinel://h/m/0/1", "database number"),
            ("redis+sentinel://h/m/3", ""),
        ]);
    }

    #[cfg(not(any(feature = "tls-rustls", feature = "tls-native")))]
    #[test]
    fn tls_that_is_not_built_in_is_named() {
        check_urls(&[
            ("rediss://:hunter2@h", "`tls-rustls`"),
            ("rediss+sentinel://:hunter2@h/m", "`tls-rustls`"),
            ("rediss+cluster://:hunter2@h", "`tls-rustls`"),
        ]);
    }

    #[cfg(any(feature = "tls-rustls", feature = "tls-native"))]
    #[test]
    fn tls_without_a_check_has_one_spelling() {
        check_urls(&[
            ("rediss://:hunter2@h", ""),
            ("rediss+sentinel://:hunter2@h/m#insecure", ""),
            ("rediss+cluster://:hunter2@h#insecure", ""),
            ("rediss://:hunter2@h/#insecur", "`#insecure`"),
        ]);
    }
}

#[cfg(not(feature = "postgres"))]
#[test]
fn postgresql_that_is_not_built_in_is_named() {
    check_urls(&[
        ("postgres://ann:hunter2@h/db", "the feature `postgres`"),
        ("postgresql://ann:hunter2@h/db", "the feature `postgres`"),
    ]);
}

#[cfg(not(feature = "sqlite"))]
#[test]
fn sqlite_that_is_not_built_in_is_named() {
    check_urls(&[
        ("sqlite:locks.db", "the feature `sqlite`"),
        ("sqlite:///x/locks.db", "the feature `sqlite`"),
    ]);
}

#[cfg(feature = "postgres")]
mod postgres {
    use super::*;

    #[test]
    fn a_database_that_is_none_is_refused_and_its_password_not_shown() {
        check_urls(&[
            ("postgres://h", ""),
            ("postgresql://ann:hunter2@h:5432/db", ""),
            ("postgres://ann:hunter2@[::1]/db?sslmode=require", ""),
            ("postgres://ann:hunter2%40%2f%25@h/db", ""),
            ("postgres:///db?host=/run/postgresql&user=ann&password=hunter2", ""),
            ("postgres://h/db?options[search_path]=locks&application_name=shop", ""),
            ("postgres://h/db?pooler=true", ""),
            ("postgres://h/db?sslmode=disable&pooler=false&user=ann", ""),
            ("postgres://ann:hunter2@h:0x1/db", "is not understood"),
            ("postgres://ann:hunter2@h:65536/db", "is not understood"),
            ("postgres://ann:hunter2@:5432/db", "is not understood"),
            // The `@` is missing, so the password is in the place of the port.
            ("postgres://ann:hunter2", "is not understood"),
            ("postgres://ann:hunter2/db", "is not understood"),
            ("postgres://:hunter2", "is not understood"),
            ("postgres://ann:hun/hunter2@h/db", "is not understood"),
            ("postgres://ann:hunter2%ff@h/db", "is not understood"),
            ("postgres://ann:1#hunter2@h/db", "`%23`"),
            ("postgres://ann:1?hunter2@h/db", "option that is not known"),
            ("postgres://h/db?pasword=hunter2", "`password`"),
            ("postgres://h/db?sslmode=hunter2", "unknown `sslmode`"),
            ("postgres://h/db?pooler=hunter2", "unknown `pooler`"),
            ("postgres://h/db?port=hunter2", "is not understood"),
            ("postgres://ann:hunter2@a,b:5433/db", "several hosts"),
            ("postgres://ann:hunter2@a:5432,b:5433/db", "several hosts"),
        ]);
    }

    #[test]
    fn a_quorum_has_no_database() {
        check_urls(&[
            (
                "quorum:postgres://ann:hunter2@a/x|postgres://b/x|postgres://c/x",
                "can't be servers of a quorum",
            ),
            ("quorum:memory:|memory:|postgres://ann:hunter2@a/x", "can't be servers of a quorum"),
        ]);
    }
}

#[cfg(not(feature = "mysql"))]
#[test]
fn mariadb_that_is_not_built_in_is_named() {
    check_urls(&[
        ("mysql://ann:hunter2@h/db", "the feature `mysql`"),
        ("mariadb://ann:hunter2@h/db", "the feature `mysql`"),
    ]);
}

#[cfg(feature = "mysql")]
#[test]
fn an_address_of_mariadb_that_is_none_is_refused_and_its_password_not_shown() {
    check_urls(&[
        ("mysql://h/db", ""),
        ("mariadb://ann:hunter2%40%2f@[::1]:3306/db?ssl-mode=VERIFY_CA&ssl-ca=/ca.pem", ""),
        ("mysql://ann@h/db?socket=/run/mysqld.sock", ""),
        ("mysql://ann:hunter2@h", "names no database"),
        ("mysql://ann:hunter2@h/", "names no database"),
        ("mysql://ann:hunter2@h:0x1/db", "is not understood"),
        ("mysql://ann:hunter2", "is not understood"),
        ("mysql://ann:1#hunter2@h/db", "`%23`"),
        ("mysql://ann:1?hunter2@h/db", "option that is not known"),
        ("mysql://h/db?ssl-mode=hunter2", "unknown `ssl-mode`"),
        ("mysql://h/db?charset=latin1", "`ssl-mode`"),
        ("mysql://ann:hunter2@a,b/db", "several hosts"),
        ("mysql:hunter2@h", "`//` is missing"),
        ("quorum:mysql://ann:hunter2@a/x|memory:|memory:", "can't be servers of a quorum"),
    ]);
}

#[cfg(not(feature = "mongodb"))]
#[test]
fn mongodb_that_is_not_built_in_is_named() {
    check_urls(&[("mongodb://ann:hunter2@h/db", "the feature `mongodb`")]);
}

#[cfg(feature = "mongodb")]
#[test]
fn an_address_of_mongodb_that_is_none_is_refused_and_its_password_not_shown() {
    check_urls(&[
        ("mongodb://h/db", ""),
        ("mongodb://ann:hunter2%40@a:1,[::1]:2,c/db?replicaSet=rs0&authSource=admin&tls=true", ""),
        ("mongodb://h/db?w=majority&journal=true", ""),
        ("mongodb://ann:hunter2@h", "no database"),
        ("mongodb://ann:hunter2@h/?replicaSet=rs0", "no database"),
        ("mongodb://ann:hunter2@h:0x1/db", "is not understood"),
        ("mongodb://ann:1@hunter2@h/db", "is not understood"),
        ("mongodb://ann:1/hunter2@h/db", "is not understood"),
        ("mongodb://ann:1?hunter2@h/db", "is not understood"),
        ("mongodb://h/db?hunter2=1", "option that is not known"),
        ("mongodb://h/db?replicaSt=hunter2", "`replicaset`"),
        ("mongodb://h/db?journal=hunter2", "must be a boolean"),
        ("mongodb://h/db?w=1", "`w=1`"),
        ("mongodb://h/db?w=2", "`w=2`"),
        ("mongodb://h/db?journal=false", "`journal=false`"),
        ("mongodb+srv://ann:hunter2@h/db", "`dns-resolver`"),
        ("mongodb:hunter2@h", "`//` is missing"),
        ("quorum:mongodb://ann:hunter2@a/x|memory:|memory:", "can't be servers of a quorum"),
    ]);
}

#[cfg(not(feature = "etcd"))]
#[test]
fn etcd_that_is_not_built_in_is_named() {
    check_urls(&[
        ("etcd://ann:hunter2@h/x", "the feature `etcd`"),
        ("etcds://ann:hunter2@h/x?ca=hunter2", "the feature `etcd`"),
    ]);
}

/// The store's own tests have more of them.
#[cfg(feature = "etcd")]
#[test]
fn an_address_of_etcd_that_is_none_is_refused_and_its_password_not_shown() {
    check_urls(&[
        ("etcd://ann:hunter2%40@a:1,[::1]:2,c/shop/", ""),
        ("etcd://ann:hunter2@h:0x1/x", "a bad port"),
        ("etcd://ann:1/hunter2@h", "an `@` behind"),
        ("etcd://h/x?ca=hunter2", "not `tokens`"),
        ("etcds://h/x?hunter2=1", "option that is not known"),
        ("etcds://ann:hunter2@h/x?ca=/none", "`ca` of the etcd address names the file \"/none\""),
        ("etcd:hunter2@h", "`//` is missing"),
        ("etcds:hunter2@h", "`//` is missing"),
        ("quorum:etcd://ann:hunter2@a/x|memory:|memory:", "can't be servers of a quorum"),
    ]);
}

#[cfg(not(feature = "zookeeper"))]
#[test]
fn zookeeper_that_is_not_built_in_is_named() {
    check_urls(&[("zookeeper://ann:hunter2@h/x", "the feature `zookeeper`")]);
}

/// The store's own tests have more of them.
#[cfg(feature = "zookeeper")]
#[test]
fn an_address_of_zookeeper_that_is_none_is_refused_and_its_password_not_shown() {
    check_urls(&[
        ("zookeeper://ann:hunter2%40@a:1,[::1]:2,c/shop/", ""),
        ("zookeeper://h/x?timeout=20s&tick=2s", ""),
        ("zookeeper://ann:hunter2@h:0x1/x", "a bad port"),
        ("zookeeper://h/x?hunter2=1", "option that is not known"),
        ("zookeeper://h/x?timeout=hunter2", "no time"),
        ("zookeeper:hunter2@h", "`//` is missing"),
        ("quorum:zookeeper://ann:hunter2@a/x|memory:|memory:", "can't be servers of a quorum"),
    ]);
}

#[cfg(all(feature = "zookeeper", not(feature = "zookeeper-tls")))]
#[test]
fn tls_of_zookeeper_that_is_not_built_in_is_named() {
    check_urls(&[("zookeepers://ann:hunter2@h/x", "the feature `zookeeper-tls`")]);
}

#[cfg(feature = "zookeeper-tls")]
#[test]
fn an_address_of_zookeeper_with_tls_is_taken_or_refused_without_its_secrets() {
    check_urls(&[
        ("zookeepers://ann:hunter2@h/x", ""),
        ("zookeepers://hunter2@h/x", "a user without a password"),
        ("zookeepers://h/x?hunter2=1", "option that is not known"),
    ]);
}

#[cfg(feature = "sqlite")]
mod sqlite {
    use super::*;

    #[test]
    fn a_file_that_is_none_is_refused() {
        check_urls(&[
            ("sqlite:locks.db", ""),
            ("sqlite://locks.db?mode=rwc", ""),
            ("sqlite:///var/lib/shop/locks%20.db", ""),
            ("sqlite:", "names no file"),
            ("sqlite://", "names no file"),
            ("sqlite:?mode=rwc", "names no file"),
            ("sqlite://a.db?mode=memory", "option that is not known"),
            ("sqlite:a.db?mode=ro", "option that is not known"),
            ("sqlite:a.db?key=hunter2", "`mode=rwc`"),
            ("sqlite:hunter2%ff", "is not understood"),
        ]);
    }

    #[test]
    fn a_quorum_has_no_file() {
        check_urls(&[("quorum:sqlite:a.db|sqlite:b.db|sqlite:c.db", "can't be servers of a quorum")]);
    }
}
