//! The Lua scripts and their calls: EVALSHA, then EVAL on the same connection if the server does
//! not know the script. SCRIPT LOAD is never used: it costs another round trip, and in a cluster it
//! waits for every node.

use std::borrow::Cow;
use std::sync::{LazyLock, OnceLock};

use redis::{Cmd, RedisWrite, ToRedisArgs};

use super::names::Name;

/// How waiters are notified.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Dialect {
    /// PUBLISH, which a cluster forwards to every node.
    #[default]
    Classic,
    /// SPUBLISH, which stays at the server of the channel's slot.
    Sharded,
}

/// A script and its hash at the server.
pub(super) struct Script {
    pub(super) name: &'static str,
    pub(super) source: &'static str,
    sha1: String,
    sharded: OnceLock<String>,
}

impl Script {
    fn new(name: &'static str, source: &'static str) -> Self {
        let sha1 = sha1_smol::Sha1::from(source).hexdigest();
        Self { name, source, sha1, sharded: OnceLock::new() }
    }

    /// Returns the source in this dialect.
    pub(super) fn text(&self, dialect: Dialect) -> Cow<'static, str> {
        match dialect {
            Dialect::Classic => Cow::Borrowed(self.source),
            Dialect::Sharded => {
                let text = self.source.replace("'PUBLISH'", "'SPUBLISH'");
                Cow::Owned(text.replace("'NUMSUB'", "'SHARDNUMSUB'"))
            }
        }
    }

    fn sha1(&self, dialect: Dialect) -> &str {
        match dialect {
            Dialect::Classic => &self.sha1,
            Dialect::Sharded => {
                let hash = || sha1_smol::Sha1::from(self.text(dialect).as_bytes()).hexdigest();
                self.sharded.get_or_init(hash)
            }
        }
    }
}

macro_rules! scripts {
    ($($name:ident = $text:literal: $($file:literal)+;)+) => {
        $(pub(super) static $name: LazyLock<Script> =
            LazyLock::new(|| Script::new($text, concat!($(include_str!(concat!("scripts/", $file, ".lua"))),+)));)+

        #[cfg(test)]
        pub(super) fn all() -> Vec<&'static Script> {
            vec![$(&*$name),+]
        }
    };
}

// Each script is the concatenation of its pieces.
scripts! {
    ACQUIRE = "acquire": "acquire" "tokens" "grant" "acquire_rest";
    ACQUIRE_ALL = "acquire_all": "tokens" "grant" "grant_all" "acquire_all";
    RELEASE = "release": "free" "release";
    ACQUIRE_ONE_KEY = "acquire_one_key": "acquire_one_key";
    TAKEOVER = "takeover": "free" "tokens" "grant" "grant_all" "takeover";
    LINGER = "linger": "linger";
    RENEW = "renew": "lengthen" "renew";
    WITHDRAW = "withdraw": "free" "withdraw";

    // The same for items of other kinds. Defining functions takes time, so the most frequent
    // scripts contain only the functions they need.
    ACQUIRE_RW = "acquire_rw": "tokens" "kinds" "mutex_take" "rw_names" "rw_take" "acquire_kinds";
    ACQUIRE_FAIR = "acquire_fair": "tokens" "kinds" "mutex_take" "fair_queue" "fair_take" "acquire_kinds";
    ACQUIRE_KINDS = "acquire_kinds":
        "tokens" "kinds" "mutex_take" "rw_names" "rw_take" "fair_queue" "fair_take" "acquire_kinds";
    RELEASE_RW = "release_rw": "free" "kinds" "mutex_free" "rw_names" "rw_free" "release_kinds";
    RELEASE_FAIR = "release_fair":
        "free" "tokens" "kinds" "mutex_free" "fair_queue" "fair_wake" "fair_free" "release_kinds";
    RELEASE_KINDS = "release_kinds":
        "free" "tokens" "kinds" "mutex_free" "rw_names" "rw_free" "fair_queue" "fair_wake" "fair_free" "release_kinds";
    WITHDRAW_RW = "withdraw_rw": "free" "kinds" "mutex_free" "rw_names" "rw_free" "withdraw_kinds";
    WITHDRAW_FAIR = "withdraw_fair":
        "free" "tokens" "kinds" "mutex_free" "fair_queue" "fair_wake" "fair_free" "withdraw_kinds";
    WITHDRAW_KINDS = "withdraw_kinds":
        "free" "tokens" "kinds" "mutex_free" "rw_names" "rw_free" "fair_queue" "fair_wake" "fair_free" "withdraw_kinds";
    LINGER_KINDS = "linger_kinds":
        "free" "tokens" "kinds" "mutex_free" "rw_names" "rw_free" "fair_queue" "fair_wake" "fair_free" "linger_kinds";
    RENEW_FAIR = "renew_fair": "kinds" "mutex_free" "fair_queue" "fair_keep" "lengthen" "renew_kinds";
    RENEW_RW = "renew_rw": "kinds" "mutex_free" "rw_names" "rw_free" "lengthen" "renew_kinds";
    RENEW_KINDS = "renew_kinds":
        "kinds" "mutex_free" "rw_names" "rw_free" "fair_queue" "fair_keep" "lengthen" "renew_kinds";
    DOWNGRADE = "downgrade": "kinds" "rw_names" "rw_free" "lengthen" "downgrade";

    // The same in the plain layout.
    PLAIN_ACQUIRE_ALL = "plain_acquire_all": "tokens" "plain_take" "grant_all" "acquire_all";
    PLAIN_ACQUIRE_ONE_KEY = "plain_acquire_one_key": "plain_take_one_key";
    PLAIN_COUNT = "plain_count": "tokens" "plain_count";
    PLAIN_RELEASE = "plain_release": "plain_holds" "plain_free" "release";
    PLAIN_LINGER = "plain_linger": "plain_holds" "plain_linger";
    PLAIN_RENEW = "plain_renew": "plain_holds" "plain_renew";
    PLAIN_WITHDRAW = "plain_withdraw": "plain_holds" "plain_free" "withdraw";
    PLAIN_RIGHTS = "plain_rights": "plain_rights";
    PLAIN_STATUS = "plain_status": "plain_status";
    PLAIN_FORCE_RELEASE = "plain_force_release": "plain_force_release";

    RIGHTS = "rights": "rights";
    STATUS = "status": "kinds" "rw_names" "status";
    FORCE_RELEASE = "force_release": "kinds" "rw_names" "tokens" "fair_queue" "fair_wake" "force_release";

    SEMAPHORE_ACQUIRE = "semaphore_acquire": "semaphore" "semaphore_acquire";
    SEMAPHORE_RELEASE = "semaphore_release": "semaphore" "semaphore_release";
    SEMAPHORE_RENEW = "semaphore_renew": "semaphore" "semaphore_renew";
    SEMAPHORE_CHANGE = "semaphore_change": "semaphore" "semaphore_change";
    LATCH_SET = "latch_set": "latch_set";
    LATCH_COUNT_DOWN = "latch_count_down": "latch_count_down";
    LATCH_COUNT = "latch_count": "latch_count";
    LATCH_DELETE = "latch_delete": "latch_delete";
    MARK = "mark": "mark";
    STOCK_TAKE = "stock_take": "stock_take" "stock" "stock_take_rest";
    STOCK_SETTLE = "stock_settle": "stock" "stock_settle";
    STOCK_CHANGE = "stock_change": "stock" "stock_fill" "stock_change";
    STOCK_EXPIRE = "stock_expire": "stock" "stock_expire";
    STOCK_LOOK = "stock_look": "stock" "stock_look";
    SPREAD_ROOT = "spread_root": "spread" "spread_root";
    SPREAD_PART = "spread_part": "spread" "spread_part";
    SPREAD_HOME = "spread_home": "spread" "spread_home";
    SPREAD_PUT = "spread_put": "spread" "spread_put";
}

/// Returns the script for locks in the plain layout that takes the same keys and arguments as this
/// one and returns the same.
pub(super) fn in_plain(script: &'static Script) -> &'static Script {
    let both: [(&'static Script, &'static Script); 9] = [
        (&ACQUIRE_ALL, &PLAIN_ACQUIRE_ALL),
        (&ACQUIRE_ONE_KEY, &PLAIN_ACQUIRE_ONE_KEY),
        (&RELEASE, &PLAIN_RELEASE),
        (&LINGER, &PLAIN_LINGER),
        (&RENEW, &PLAIN_RENEW),
        (&WITHDRAW, &PLAIN_WITHDRAW),
        (&RIGHTS, &PLAIN_RIGHTS),
        (&STATUS, &PLAIN_STATUS),
        (&FORCE_RELEASE, &PLAIN_FORCE_RELEASE),
    ];
    let same = both.into_iter().find(|(hash, _)| std::ptr::eq(*hash, script));
    same.map_or(script, |(_, plain)| plain)
}

/// One call of a script.
pub(super) struct Invocation {
    script: &'static Script,
    dialect: Dialect,
    command: Cmd,
}

/// Approximate size of an argument, so that a command is rarely reallocated while it grows.
const USUAL: usize = 48;

impl Invocation {
    /// Returns a call with `keys` keys and about `arguments` arguments, which are added next in
    /// this order.
    pub(super) fn new(script: &'static Script, dialect: Dialect, keys: usize, arguments: usize) -> Self {
        let count = 3 + keys + arguments;
        let mut command = Cmd::with_capacity(count, count * USUAL);
        command.arg("EVALSHA").arg(script.sha1(dialect)).arg(keys);
        Self { script, dialect, command }
    }

    /// Adds a key or a channel.
    pub(super) fn name(&mut self, name: Name<'_>) -> &mut Self {
        self.command.write_arg_fmt(name);
        self
    }

    pub(super) fn arg(&mut self, argument: impl ToRedisArgs) -> &mut Self {
        self.command.arg(argument);
        self
    }

    pub(super) fn script(&self) -> &'static Script {
        self.script
    }

    /// Returns the usual EVALSHA.
    pub(super) fn by_name(&self) -> &Cmd {
        &self.command
    }

    /// Returns the EVAL for a server that answered NOSCRIPT.
    pub(super) fn by_source(&self) -> Cmd {
        let mut command = Cmd::new();
        command.arg("EVAL").arg(&*self.script.text(self.dialect));
        for argument in self.command.args_iter().skip(2) {
            if let redis::Arg::Simple(bytes) = argument {
                command.arg(bytes);
            }
        }
        command
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn in_the_sharded_dialect_nothing_is_published_to_all_servers() {
        for script in all() {
            let text = script.text(Dialect::Sharded);
            assert!(!text.contains("'PUBLISH'") && !text.contains("'NUMSUB'"), "{}", script.name);
            let differs = script.source.contains("'PUBLISH'") || script.source.contains("'NUMSUB'");
            assert_eq!(script.source != text, differs, "{}", script.name);
            assert_eq!(
                script.sha1(Dialect::Classic) != script.sha1(Dialect::Sharded),
                differs,
                "{}",
                script.name
            );
            assert!(!script.source.contains("\"PUBLISH\""), "{}: in other quotes", script.name);
        }
        let telling = all().into_iter().filter(|script| script.text(Dialect::Sharded).contains("'SPUBLISH'"));
        assert!(telling.count() >= 20);
    }
}
