//! The Lua scripts and how they are called: EVALSHA, and EVAL on the same connection when the server does not know the
//! script. Never SCRIPT LOAD: it costs a round trip more, and in a cluster it waits for every node.

use std::sync::LazyLock;

use redis::{Cmd, ToRedisArgs};

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
    ACQUIRE = "acquire": "scripts/grant.lua" "scripts/acquire.lua";
    RELEASE = "release": "scripts/free.lua" "scripts/release.lua";
    TAKEOVER = "takeover": "scripts/free.lua" "scripts/grant.lua" "scripts/takeover.lua";
    LINGER = "linger": "scripts/linger.lua";
    KEEP = "keep": "scripts/keep.lua";
    WITHDRAW = "withdraw": "scripts/free.lua" "scripts/withdraw.lua";
    STATUS = "status": "scripts/status.lua";
    FORCE_RELEASE = "force_release": "scripts/force_release.lua";
}

/// One call of a script.
pub(super) struct Invocation {
    script: &'static Script,
    command: Cmd,
}

impl Invocation {
    /// A call with these keys; arguments follow.
    pub(super) fn new<'a, K>(script: &'static Script, keys: K) -> Self
    where
        K: Iterator<Item = &'a str> + Clone,
    {
        let mut command = Cmd::new();
        command.arg("EVALSHA").arg(&script.sha1).arg(keys.clone().count());
        for key in keys {
            command.arg(key);
        }
        Self { script, command }
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
