//! The wire format: keys, fields, channel and payload are Redisson's, commands are Redis 6.2's.

use super::super::script;
use super::*;

/// Commands of Redis 6.2 that the scripts may use.
const COMMANDS: [&str; 38] = [
    "TIME",
    "EXISTS",
    "PTTL",
    "HEXISTS",
    "HRANDFIELD",
    "GET",
    "SET",
    "INCRBY",
    "PEXPIRE",
    "PERSIST",
    "HSET",
    "HSETNX",
    "HSCAN",
    "HDEL",
    "PUBLISH",
    "HLEN",
    "HGETALL",
    "HMGET",
    "LLEN",
    "PUBSUB",
    "DEL",
    "HGET",
    "HINCRBY",
    "HKEYS",
    "LINDEX",
    "LPOP",
    "LPOS",
    "LRANGE",
    "LREM",
    "PEXPIREAT",
    "RPUSH",
    "ZADD",
    "ZCARD",
    "ZMSCORE",
    "ZRANGE",
    "ZRANGEBYSCORE",
    "ZREM",
    "ZSCORE",
];
/// Options of those commands in Redis 6.2.
const OPTIONS: [&str; 10] =
    ["COUNT", "KEEPTTL", "NX", "PX", "NUMSUB", "XX", "WITHSCORES", "WITHVALUES", "LIMIT", "GT"];

#[test]
fn scripts_use_only_commands_and_options_of_redis_6_2() {
    let known: Vec<&str> = [&COMMANDS[..], &OPTIONS].concat();
    for script in script::all() {
        let code: String = script
            .source
            .lines()
            .map(|line| line.split_once("--").map_or(line, |(code, _)| code))
            .collect::<Vec<_>>()
            .join("\n");
        // Words in capitals between quotes go to the server, except single letters, which belong to
        // records.
        for word in code.split('\'').skip(1).step_by(2) {
            if word.len() > 1 && word.chars().all(|c| c.is_ascii_uppercase()) && word != "WRONGTYPE" {
                assert!(known.contains(&word), "{} uses {word}", script.name);
            }
        }
        let calls = ["redis.call(", "redis.pcall(", " call(", " try("]
            .into_iter()
            .flat_map(|call| code.split(call).skip(1));
        for call in calls {
            assert!(call.starts_with('\''), "{} hides a command: {call:.40}", script.name);
        }
        for new in ["redis.setresp", "redis.breakpoint", "#!lua", "server.call"] {
            assert!(!code.contains(new), "{} uses {new}", script.name);
        }
    }
}

/// The scripts for all kinds use more, after a first write; see the tests of full memory in `rw`
/// and `fair_states`.
#[test]
fn scripts_that_free_or_renew_use_only_commands_that_full_memory_allows() {
    // Those without the flag `denyoom`.
    const ALLOWED: [&str; 6] = ["TIME", "PTTL", "HEXISTS", "PEXPIRE", "HDEL", "PUBLISH"];
    for script in [&*script::RELEASE, &script::LINGER, &script::RENEW, &script::WITHDRAW] {
        for call in script.source.split("call('").skip(1) {
            let command = call.split('\'').next().unwrap();
            assert!(ALLOWED.contains(&command), "{} uses {command}", script.name);
        }
    }
}

#[test]
fn every_script_says_what_it_does() {
    for script in script::all() {
        for part in ["KEYS", "Returns"] {
            assert!(script.source.contains(part), "{}: {part}", script.name);
        }
    }
}

#[tokio::test]
async fn keys_and_fields_are_redissons() {
    let server = RedisServer::start();
    for (prefix, name, lock, counter) in [
        ("lock:", "order:42", "lock:order:42", "redisson_lock_token:{lock:order:42}"),
        ("", "order:42", "order:42", "redisson_lock_token:{order:42}"),
        ("", "{order}:42", "{order}:42", "redisson_lock_token:{order}:42"),
        ("{app}:", "x", "{app}:x", "redisson_lock_token:{app}:x"),
    ] {
        let _: () = server.ask(&["FLUSHALL"]).await;
        let store = store_with(&server, |options| options.prefix = prefix.to_owned());
        let mine = [item(name)];
        granted(&store, &mine).await;
        let mut expected = [lock, counter];
        expected.sort_unstable();
        assert_eq!(server.keys().await, expected);
        let fields: Vec<String> = server.ask(&["HGETALL", lock]).await;
        assert_eq!(fields, [mine[0].owner.as_str(), "1"]);
        release(&store, &mine).await.unwrap();
        assert_eq!(server.keys().await, [counter]);
    }
}

/// Returns the lines of MONITOR while `work` runs.
pub(super) async fn monitored(server: &RedisServer, work: impl Future<Output = ()>) -> Vec<String> {
    use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
    let mut stream = BufReader::new(tokio::net::TcpStream::connect(server.addr()).await.unwrap());
    stream.write_all(b"MONITOR\r\n").await.unwrap();
    let mut line = String::new();
    stream.read_line(&mut line).await.unwrap();
    assert_eq!(line, "+OK\r\n");
    work.await;
    let _: () = server.ask(&["ECHO", "the-end"]).await;
    let mut lines = Vec::new();
    loop {
        let mut line = String::new();
        stream.read_line(&mut line).await.unwrap();
        if line.contains("the-end") {
            return lines;
        }
        lines.push(line.trim_end().to_owned());
    }
}

#[tokio::test]
async fn the_monitor_sees_redissons_effects() {
    let server = RedisServer::start();
    let store = store(&server);
    // Once unobserved, so that the scripts are known and the connection exists.
    let warm = [item("warm")];
    granted(&store, &warm).await;
    release(&store, &warm).await.unwrap();

    let mine = [item("a")];
    let owner = mine[0].owner.as_str();
    let lines = monitored(&server, async {
        granted(&store, &mine).await;
        release(&store, &mine).await.unwrap();
    })
    .await;
    let inside: Vec<&str> = lines.iter().filter_map(|line| Some(line.split_once(" lua] ")?.1)).collect();
    let has = |text: &str| inside.iter().any(|line| line.eq_ignore_ascii_case(text));
    assert!(has(&format!("\"HSET\" \"lock:a\" \"{owner}\" \"1\"")), "{lines:#?}");
    assert!(has("\"PEXPIRE\" \"lock:a\" \"10000\""), "{lines:#?}");
    assert!(has(&format!("\"HDEL\" \"lock:a\" \"{owner}\"")), "{lines:#?}");
    assert!(has("\"PUBLISH\" \"redisson_lock__channel:{lock:a}\" \"0\""), "{lines:#?}");
    let outside: Vec<&String> = lines.iter().filter(|line| !line.contains(" lua] ")).collect();
    let calls = outside.iter().filter(|line| line.contains("\"EVALSHA\"")).count();
    assert_eq!(calls, 2, "one call for each step: {outside:#?}");
    assert!(inside.len() <= 8, "the plain path stays lean: {inside:#?}");
}

#[tokio::test]
async fn a_waiter_of_redissons_gets_the_message() {
    let server = RedisServer::start();
    let store = store(&server);
    for how in 0..3 {
        // As a waiting RLock does: SUBSCRIBE on its own connection.
        let mut waiter = Subscription::start(&server, "redisson_lock__channel:{lock:a}").await;
        let items = [item("a")];
        let request = Arc::new(request(&items));
        assert!(matches!(store.acquire(Arc::clone(&request)).await.unwrap(), Acquired::Granted(_)));
        match how {
            0 => {
                let released = release(&store, &items).await.unwrap();
                assert_eq!(released.rivals, Rivals::Some);
            }
            1 => assert!(store.force_release(key("a")).await.unwrap()),
            _ => {
                store.withdraw(request).await.unwrap();
            }
        }
        assert_eq!(waiter.next().await, "0");
    }
}

/// A subscriber other than our client.
pub(super) struct Subscription(tokio::io::BufReader<tokio::net::TcpStream>);

impl Subscription {
    pub(super) async fn start(server: &RedisServer, channel: &str) -> Self {
        use tokio::io::AsyncWriteExt;
        let mut stream = tokio::net::TcpStream::connect(server.addr()).await.unwrap();
        stream.write_all(format!("SUBSCRIBE {channel}\r\n").as_bytes()).await.unwrap();
        let mut subscription = Self(tokio::io::BufReader::new(stream));
        assert_eq!(subscription.lines(6).await[5], ":1");
        subscription
    }

    /// Returns the payload of the next message.
    pub(super) async fn next(&mut self) -> String {
        let lines = tokio::time::timeout(Duration::from_secs(5), self.lines(7)).await.unwrap();
        assert_eq!(lines[2], "message");
        assert_eq!(lines[5], format!("${}", lines[6].len()));
        lines[6].clone()
    }

    async fn lines(&mut self, count: usize) -> Vec<String> {
        use tokio::io::AsyncBufReadExt;
        let mut lines = Vec::new();
        for _ in 0..count {
            let mut line = String::new();
            self.0.read_line(&mut line).await.unwrap();
            lines.push(line.trim_end().to_owned());
        }
        lines
    }
}

/// Redisson's fenced lock: its `tryLock` script returns the counter through Lua.
const FENCED: &str = "
    if redis.call('exists', KEYS[1]) == 0 then
        redis.call('incr', KEYS[2])
        redis.call('hincrby', KEYS[1], ARGV[2], 1)
        redis.call('pexpire', KEYS[1], ARGV[1])
        return redis.call('get', KEYS[2])
    end
    return redis.call('pttl', KEYS[1])";

#[tokio::test]
async fn tokens_grow_across_alternations_with_java() {
    let server = RedisServer::start();
    let store = store_with(&server, |options| {
        options.prefix = String::new();
    });
    let mut connection = server.connection().await;
    let java = "0e5a1b0e-7c0f-4f0e-9d53-0c1a3e6c2f11:42";
    let mut highest = 0;
    for _ in 0..1500 {
        if rand::random::<bool>() {
            let mut call = redis::cmd("EVAL");
            call.arg(FENCED).arg(2).arg("a").arg("redisson_lock_token:{a}").arg(30_000).arg(java);
            let token: u64 = call.query_async(&mut connection).await.unwrap();
            assert!(token > highest, "{token} {highest}");
            highest = token;
            busy(&store, &[item("a")]).await;
            let _: () = redis::cmd("DEL").arg("a").query_async(&mut connection).await.unwrap();
        } else {
            let mine = [item("a")];
            let tokens = [1, 1, 1, 1000, 50_000][rand::random_range(0..5)];
            let request = request(&mine).tokens(tokens).retention(lock_core::TokenRetention::Keep);
            let range = granted_by(&store, request).await.tokens[0];
            assert!(range.first > highest, "{range:?} {highest}");
            highest = range.last;
            release(&store, &mine).await.unwrap();
        }
    }
}
