//! Fair locks under test: a server, our store, and Redisson simulated by its documented effects.

use lock_core::store::{RenewItem, RenewRequest, Renewed, Standing, Withdrawn};

use super::*;

pub(super) const LOCK: &str = "lock:a";
pub(super) const QUEUE: &str = "redisson_lock_queue:{lock:a}";
pub(super) const TIMEOUTS: &str = "redisson_lock_timeout:{lock:a}";
pub(super) const ALIVE: &str = "lock_fair_alive:{lock:a}";
pub(super) const MANAGERS: &str = "lock_fair_managers:{lock:a}";
pub(super) const COUNTER: &str = "redisson_lock_token:{lock:a}";
pub(super) const CHANNEL: &str = "redisson_lock__channel:{lock:a}";

pub(super) const FIVE: Duration = Duration::from_secs(5);

/// Returns a fair item of the key `a` with its own owner.
pub(super) fn fair() -> Item {
    Item { kind: Kind::Fair, ..item("a") }
}

pub(super) struct Rig {
    pub(super) server: RedisServer,
    pub(super) store: RedisStore,
    connection: redis::aio::MultiplexedConnection,
}

impl Rig {
    pub(super) async fn start() -> Self {
        let server = RedisServer::start();
        let (store, connection) = (store(&server), server.connection().await);
        Self { server, store, connection }
    }

    async fn eval<T: redis::FromRedisValue>(&self, source: &str, keys: &[&str], arguments: &[String]) -> T {
        let mut call = redis::cmd("EVAL");
        call.arg(source).arg(keys.len()).arg(keys).arg(arguments);
        call.query_async(&mut self.connection.clone()).await.unwrap()
    }

    pub(super) async fn run<T: redis::FromRedisValue>(&self, words: &[&str]) -> T {
        let mut command = redis::Cmd::new();
        for word in words {
            command.arg(word);
        }
        command.query_async(&mut self.connection.clone()).await.unwrap()
    }

    // Our side.

    pub(super) async fn ask(&self, request: AcquireRequest) -> Acquired {
        self.store.acquire(Arc::new(request)).await.unwrap()
    }

    /// Asks, and queues.
    pub(super) async fn queue_up(&self, item: &Item, wait: Duration) -> Busy {
        match self.ask(request(std::slice::from_ref(item)).queued(wait)).await {
            Acquired::Busy(busy) => busy,
            Acquired::Granted(granted) => panic!("{granted:?}"),
        }
    }

    /// Asks, queues if necessary, and is granted.
    pub(super) async fn get(&self, item: &Item) -> Granted {
        granted_by(&self.store, request(std::slice::from_ref(item)).queued(FIVE)).await
    }

    pub(super) async fn release(&self, item: &Item) -> Released {
        release(&self.store, std::slice::from_ref(item)).await.unwrap()
    }

    pub(super) async fn withdraw(&self, item: &Item) -> Withdrawn {
        let request = request(std::slice::from_ref(item));
        request.stamp(ServerTime::from_micros(1));
        self.store.withdraw(Arc::new(request)).await.unwrap()
    }

    pub(super) async fn renew(&self, items: &[Item], standing: Standing) -> Vec<Renewed> {
        let items =
            items.iter().map(|item| RenewItem { standing, ..RenewItem::hold(item.clone(), LEASE) }).collect();
        self.store.renew(Arc::new(RenewRequest { items, timeout: TIMEOUT })).await.unwrap()
    }

    pub(super) async fn stay(&self, item: &Item) -> Renewed {
        self.renew(std::slice::from_ref(item), Standing::Waiter).await[0]
    }

    /// Makes the waiter look as if it had not been kept for long enough.
    pub(super) async fn die(&self, item: &Item) {
        let owner = item.owner.as_str();
        let record: String = self.run(&["HGET", ALIVE, owner]).await;
        let mut words: Vec<&str> = record.split(' ').collect();
        words[1] = "1";
        let _: u64 = self.run(&["HSET", ALIVE, owner, &words.join(" ")]).await;
    }

    // The present state.

    pub(super) async fn queue(&self) -> Vec<String> {
        self.run(&["LRANGE", QUEUE, "0", "-1"]).await
    }

    /// Returns the deadlines in the order of the queue, in ms of the server's time.
    pub(super) async fn deadlines(&self) -> Vec<i64> {
        let mut deadlines = Vec::new();
        for owner in self.queue().await {
            deadlines.push(self.deadline(&owner).await);
        }
        deadlines
    }

    pub(super) async fn deadline(&self, owner: &str) -> i64 {
        let score: String = self.run(&["ZSCORE", TIMEOUTS, owner]).await;
        let late: Option<i64> = self.run(&["HGET", MANAGERS, ""]).await;
        score.parse::<f64>().unwrap() as i64 - late.unwrap_or(0)
    }

    /// Returns the distances between successive deadlines.
    pub(super) async fn gaps(&self) -> Vec<i64> {
        self.deadlines().await.windows(2).map(|two| two[1] - two[0]).collect()
    }

    pub(super) async fn holder(&self) -> Option<String> {
        let fields: Vec<String> = self.run(&["HKEYS", LOCK]).await;
        assert!(fields.len() < 2, "{fields:?}");
        fields.into_iter().next()
    }

    /// Returns the server's time in ms.
    pub(super) async fn now(&self) -> i64 {
        let (seconds, micros): (i64, i64) = self.run(&["TIME"]).await;
        seconds * 1000 + micros / 1000
    }

    /// Returns when the lock's lease ends, in ms of the server's time.
    pub(super) async fn lease_ends(&self) -> i64 {
        const SOURCE: &str = "local t = redis.call('TIME') return t[1] * 1000 + math.floor(t[2] / 1000) + redis.call('PTTL', KEYS[1])";
        self.eval(SOURCE, &[LOCK], &[]).await
    }

    pub(super) async fn no_keys_but_the_counter(&self) {
        let keys = self.server.keys().await;
        assert!(keys.iter().all(|key| key == COUNTER), "{keys:?}");
    }

    // Redisson's side. `now` is the clock of its client.

    /// Asks as Redisson does. Returns `None` if it has the lock, else the time that it would sleep,
    /// in ms.
    pub(super) async fn java_lock(&self, java: &Java, now: i64) -> Option<i64> {
        let arguments = [java.lease.to_string(), java.owner.clone(), java.wait.to_string(), now.to_string()];
        let source = format!("{PURGE}{JAVA_LOCK}");
        self.eval(&source, &[LOCK, QUEUE, TIMEOUTS], &arguments).await
    }

    /// Calls `tryLock()` without waiting.
    pub(super) async fn java_try(&self, java: &Java, now: i64) -> bool {
        let arguments = [java.lease.to_string(), java.owner.clone(), java.wait.to_string(), now.to_string()];
        let source = format!("{PURGE}{JAVA_TRY}");
        self.eval::<Option<i64>>(&source, &[LOCK, QUEUE, TIMEOUTS], &arguments).await.is_none()
    }

    /// Ends a wait that is over.
    pub(super) async fn java_gives_up(&self, java: &Java) {
        let arguments = [java.owner.clone(), java.wait.to_string()];
        self.eval::<()>(JAVA_GIVES_UP, &[QUEUE, TIMEOUTS], &arguments).await;
    }

    /// Releases as Redisson does. `None` means that it does not hold the lock, an exception in
    /// Redisson.
    pub(super) async fn java_unlock(&self, java: &Java, now: i64) -> Option<i64> {
        let arguments = [java.lease.to_string(), java.owner.clone(), CHANNEL.to_owned(), now.to_string()];
        let source = format!("{PURGE}{JAVA_UNLOCK}");
        self.eval(&source, &[LOCK, QUEUE, TIMEOUTS], &arguments).await
    }
}

/// A thread of a Java program.
#[derive(Clone, Debug)]
pub(super) struct Java {
    pub(super) owner: String,
    pub(super) wait: i64,
    pub(super) lease: i64,
}

impl Java {
    pub(super) fn new(thread: usize, wait: Duration) -> Self {
        let wait = wait.as_millis().try_into().unwrap();
        Self { owner: format!("0e5a1b0e-7c0f-4f0e-9d53-0c1a3e6c2f11:{thread}"), wait, lease: 30_000 }
    }
}

/// The beginning of each script of Redisson's: removes heads whose deadline is over.
const PURGE: &str = "
    local lock, queue, timeouts, owner, now = KEYS[1], KEYS[2], KEYS[3], ARGV[2], tonumber(ARGV[4])
    while true do
        local head = redis.call('lindex', queue, 0)
        local score = head and redis.call('zscore', timeouts, head)
        if not score or tonumber(score) > now then break end
        redis.call('zrem', timeouts, head)
        redis.call('lpop', queue)
    end
    local function enter()
        if redis.call('exists', lock) == 0
            and (redis.call('exists', queue) == 0 or redis.call('lindex', queue, 0) == owner) then
            redis.call('lpop', queue)
            redis.call('zrem', timeouts, owner)
            for _, other in ipairs(redis.call('zrange', timeouts, 0, -1)) do
                redis.call('zincrby', timeouts, -tonumber(ARGV[3]), other)
            end
            redis.call('hset', lock, owner, 1)
            redis.call('pexpire', lock, ARGV[1])
            return true
        end
        if redis.call('hexists', lock, owner) == 1 then
            redis.call('hincrby', lock, owner, 1)
            redis.call('pexpire', lock, ARGV[1])
            return true
        end
    end
";

const JAVA_LOCK: &str = "
    if enter() then return nil end
    if redis.call('zscore', timeouts, owner) then return math.max(0, redis.call('pttl', lock)) end
    local last = redis.call('lindex', queue, -1)
    local score = last and redis.call('zscore', timeouts, last)
    local ttl = score and tonumber(score) - now or redis.call('pttl', lock)
    if redis.call('zadd', timeouts, string.format('%.0f', ttl + ARGV[3] + now), owner) == 1 then
        redis.call('rpush', queue, owner)
    end
    return ttl
";

const JAVA_TRY: &str = "
    if enter() then return nil end
    return 1
";

const JAVA_GIVES_UP: &str = "
    local behind = false
    for _, other in ipairs(redis.call('lrange', KEYS[1], 0, -1)) do
        if behind then redis.call('zincrby', KEYS[2], -tonumber(ARGV[2]), other) end
        behind = behind or other == ARGV[1]
    end
    redis.call('zrem', KEYS[2], ARGV[1])
    redis.call('lrem', KEYS[1], 0, ARGV[1])
";

const JAVA_UNLOCK: &str = "
    local channel = ARGV[3]
    local function wake()
        local head = redis.call('lindex', queue, 0)
        if head then redis.call('publish', channel .. ':' .. head, '0') end
        return 1
    end
    if redis.call('exists', lock) == 0 then return wake() end
    if redis.call('hexists', lock, owner) == 0 then return nil end
    if redis.call('hincrby', lock, owner, -1) > 0 then
        redis.call('pexpire', lock, ARGV[1])
        return 0
    end
    redis.call('del', lock)
    return wake()
";
