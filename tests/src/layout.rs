//! [`Layout`]: how a Redis store keeps its locks, and [`on_every_layout!`](crate::on_every_layout).

use std::str::FromStr;

use crate::RedisServer;

/// The keys of the locks at Redis servers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Layout {
    /// Redisson's: a lock is a hash, and has its own token counter.
    #[default]
    Hash,
    /// A lock is a string. All locks of a server share a token counter; in a cluster, all locks of
    /// a slot.
    Plain,
}

impl Layout {
    /// All layouts.
    pub const ALL: [Self; 2] = [Self::Hash, Self::Plain];

    /// Returns the name on the command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Hash => "hash",
            Self::Plain => "plain",
        }
    }

    /// Returns the URL of a store with this layout at the servers of `url`, which names none.
    #[must_use]
    pub fn url(self, url: &str) -> String {
        let mut url = url.to_owned();
        if self == Self::Plain {
            for base in ["redis", "rediss"] {
                for rest in ["://", "+sentinel://", "+cluster://"] {
                    url = url.replace(&format!("{base}{rest}"), &format!("{base}+plain{rest}"));
                }
            }
        }
        url
    }

    /// Returns the prefix of the names of token counters.
    #[must_use]
    pub fn counters(self) -> &'static str {
        match self {
            Self::Hash => "redisson_lock_token:",
            Self::Plain => "lock_plain_tokens:",
        }
    }

    /// Returns the owner of a lock, or nothing if it is free. `key` is its name at the server.
    ///
    /// # Panics
    ///
    /// When the server does not answer.
    #[must_use]
    pub fn owner(self, server: &RedisServer, key: &str) -> String {
        server.cli(&[if self == Self::Hash { "HKEYS" } else { "GET" }, key])
    }

    /// Returns the names of the locks at a server.
    ///
    /// # Panics
    ///
    /// When the server does not answer.
    #[must_use]
    pub fn locks(self, server: &RedisServer) -> Vec<String> {
        let of_locks = if self == Self::Hash { "hash" } else { "string" };
        let keys = server.cli(&["KEYS", "*"]);
        let keys = keys.lines().filter(|key| !key.is_empty() && !key.starts_with(self.counters()));
        keys.filter(|key| server.cli(&["TYPE", key]) == of_locks).map(str::to_owned).collect()
    }
}

impl FromStr for Layout {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|layout| layout.name() == text);
        found.ok_or_else(|| format!("unknown layout {text:?}; there are: hash, plain"))
    }
}

/// Makes a test of each of these functions for every layout. Each one takes the layout.
///
/// ```
/// async fn the_server_is_up(layout: lock_tests::Layout) {
///     let server = lock_tests::RedisServer::start();
///     assert!(layout.locks(&server).is_empty());
/// }
///
/// lock_tests::on_every_layout! { async: the_server_is_up }
/// ```
///
/// Functions that are not async follow `blocking:` instead.
#[macro_export]
macro_rules! on_every_layout {
    (async: $($(#[$attribute:meta])* $name:ident),+ $(,)?) => {
        $crate::on_every_layout! { @async hash Hash $($(#[$attribute])* $name)+ }
        $crate::on_every_layout! { @async plain Plain $($(#[$attribute])* $name)+ }
    };
    (blocking: $($(#[$attribute:meta])* $name:ident),+ $(,)?) => {
        $crate::on_every_layout! { @blocking hash Hash $($(#[$attribute])* $name)+ }
        $crate::on_every_layout! { @blocking plain Plain $($(#[$attribute])* $name)+ }
    };
    (@async $module:ident $layout:ident $($(#[$attribute:meta])* $name:ident)+) => {
        mod $module {
            $(
                $(#[$attribute])*
                #[::tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $name() {
                    super::$name($crate::Layout::$layout).await;
                }
            )+
        }
    };
    (@blocking $module:ident $layout:ident $($(#[$attribute:meta])* $name:ident)+) => {
        mod $module {
            $(
                $(#[$attribute])*
                #[test]
                fn $name() {
                    super::$name($crate::Layout::$layout);
                }
            )+
        }
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_layout_is_in_each_scheme_of_a_url() {
        let url =
            "quorum:redis://127.0.0.1:1|redis+sentinel://127.0.0.1:2/main|redis+cluster://:x@127.0.0.1:3";
        assert_eq!(Layout::Hash.url(url), url);
        assert_eq!(
            Layout::Plain.url(url),
            "quorum:redis+plain://127.0.0.1:1|redis+plain+sentinel://127.0.0.1:2/main|redis+plain+cluster://:x@127.0.0.1:3"
        );
        for layout in Layout::ALL {
            assert_eq!(layout.name().parse(), Ok(layout));
        }
        assert!("nonsense".parse::<Layout>().unwrap_err().contains("plain"));
    }
}
