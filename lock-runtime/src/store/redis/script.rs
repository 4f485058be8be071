//! The Lua scripts and how they are called: EVALSHA, and EVAL on the same connection when the server does not know the
//! script. Never SCRIPT LOAD: it costs a round trip more, and in a cluster it waits for every node.

use std::sync::LazyLock;

use redis::{Cmd, RedisWrite, ToRedisArgs};

use super::names::Name;

/// A script and its name at the server.
pub(super) struct Script {
    pub(super) name: &'static str,
    pub(super) source: &'static str,
    sha1: String,
}

impl Script {
    fn new(name: &'static str, source: &'static str) -> Self {
        Self { name, source, sha1: sha1_smol::Sha1::from(source).hexdigest() }
    }
}

macro_rules! scripts {
    ($($name:ident = $text:literal: $($file:literal)+;)+) => {
        $(pub(super) static $name: LazyLock<Script> =
            LazyLock::new(|| Script::new($text, concat!($(include_str!($file)),+)));)+

        #[cfg(test)]
        pub(super) fn all() -> Vec<&'static Script> {
            vec![$(&*$name),+]
        }
    };
}

scripts! {
    ACQUIRE = "acquire": "scripts/acquire.lua" "scripts/tokens.lua" "scripts/grant.lua" "scripts/acquire_rest.lua";
    ACQUIRE_ALL = "acquire_all":
        "scripts/tokens.lua" "scripts/grant.lua" "scripts/grant_all.lua" "scripts/acquire_all.lua";
    RELEASE = "release": "scripts/free.lua" "scripts/release.lua";
    TAKEOVER = "takeover":
        "scripts/free.lua" "scripts/tokens.lua" "scripts/grant.lua" "scripts/grant_all.lua" "scripts/takeover.lua";
    LINGER = "linger": "scripts/linger.lua";
    KEEP = "keep": "scripts/keep.lua";
    WITHDRAW = "withdraw": "scripts/free.lua" "scripts/withdraw.lua";
    ACQUIRE_KINDS = "acquire_kinds":
        "scripts/tokens.lua" "scripts/kinds.lua" "scripts/mutex_take.lua" "scripts/rw_names.lua" "scripts/rw_take.lua"
        "scripts/fair_queue.lua" "scripts/fair_take.lua" "scripts/acquire_kinds.lua";
    ACQUIRE_FAIR = "acquire_fair":
        "scripts/tokens.lua" "scripts/kinds.lua" "scripts/mutex_take.lua" "scripts/fair_queue.lua"
        "scripts/fair_take.lua" "scripts/acquire_kinds.lua";
    RELEASE_KINDS = "release_kinds":
        "scripts/free.lua" "scripts/kinds.lua" "scripts/mutex_free.lua" "scripts/rw_names.lua" "scripts/rw_free.lua"
        "scripts/tokens.lua" "scripts/fair_queue.lua" "scripts/fair_wake.lua" "scripts/fair_free.lua"
        "scripts/release_kinds.lua";
    RELEASE_FAIR = "release_fair":
        "scripts/free.lua" "scripts/tokens.lua" "scripts/kinds.lua" "scripts/mutex_free.lua" "scripts/fair_queue.lua"
        "scripts/fair_wake.lua" "scripts/fair_free.lua" "scripts/release_kinds.lua";
    LINGER_KINDS = "linger_kinds":
        "scripts/free.lua" "scripts/kinds.lua" "scripts/mutex_free.lua" "scripts/rw_names.lua" "scripts/rw_free.lua"
        "scripts/tokens.lua" "scripts/fair_queue.lua" "scripts/fair_wake.lua" "scripts/fair_free.lua"
        "scripts/linger_kinds.lua";
    KEEP_KINDS = "keep_kinds":
        "scripts/free.lua" "scripts/kinds.lua" "scripts/mutex_free.lua" "scripts/rw_names.lua" "scripts/rw_free.lua"
        "scripts/tokens.lua" "scripts/fair_queue.lua" "scripts/fair_wake.lua" "scripts/fair_free.lua"
        "scripts/keep_kinds.lua";
    WITHDRAW_KINDS = "withdraw_kinds":
        "scripts/free.lua" "scripts/kinds.lua" "scripts/mutex_free.lua" "scripts/rw_names.lua" "scripts/rw_free.lua"
        "scripts/tokens.lua" "scripts/fair_queue.lua" "scripts/fair_wake.lua" "scripts/fair_free.lua"
        "scripts/withdraw_kinds.lua";
    WITHDRAW_FAIR = "withdraw_fair":
        "scripts/free.lua" "scripts/tokens.lua" "scripts/kinds.lua" "scripts/mutex_free.lua" "scripts/fair_queue.lua"
        "scripts/fair_wake.lua" "scripts/fair_free.lua" "scripts/withdraw_kinds.lua";
    DOWNGRADE = "downgrade":
        "scripts/kinds.lua" "scripts/rw_names.lua" "scripts/rw_free.lua" "scripts/downgrade.lua";
    STATUS = "status": "scripts/kinds.lua" "scripts/rw_names.lua" "scripts/status.lua";
    FORCE_RELEASE = "force_release":
        "scripts/kinds.lua" "scripts/rw_names.lua" "scripts/tokens.lua" "scripts/fair_queue.lua" "scripts/fair_wake.lua"
        "scripts/force_release.lua";
}

/// One call of a script.
pub(super) struct Invocation {
    script: &'static Script,
    command: Cmd,
}

/// What an argument takes, about, so that a command is rarely moved while it grows.
const USUAL: usize = 48;

impl Invocation {
    /// A call with so many keys. They follow, and then the arguments, about as many as said.
    pub(super) fn new(script: &'static Script, keys: usize, arguments: usize) -> Self {
        let count = 3 + keys + arguments;
        let mut command = Cmd::with_capacity(count, count * USUAL);
        command.arg("EVALSHA").arg(&script.sha1).arg(keys);
        Self { script, command }
    }

    /// A key, or a channel.
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

    /// The usual form.
    pub(super) fn by_name(&self) -> &Cmd {
        &self.command
    }

    /// For a server that answered NOSCRIPT.
    pub(super) fn by_source(&self) -> Cmd {
        let mut command = Cmd::new();
        command.arg("EVAL").arg(self.script.source);
        for argument in self.command.args_iter().skip(2) {
            if let redis::Arg::Simple(bytes) = argument {
                command.arg(bytes);
            }
        }
        command
    }
}
