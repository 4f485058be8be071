-- Returns the commands and keys that locks need and the user may not use. If the user may use
-- nothing that only one kind needs, it is not meant for that kind, and nothing is missing for it.
--
-- KEYS     a lock that nobody has
-- ARGV     the channels of mutexes, and of readers and writers; the four keys of a fair queue, the
--          counter, the intent of a writer, the hold of a reader
-- Returns  what is missing: commands in lower case, names as they are
--
-- What Redisson sees: nothing. The script removes all that it writes under the name of the lock,
-- and writes nothing that the user may not remove.
local K, missing = KEYS[1], {}
if redis.pcall('EXISTS', K) == 1 then return missing end

local function may(answer)
  local error = type(answer) == 'table' and answer.err
  return not error or not (string.find(error, "user executing the script can't", 1, true) or string.find(error, '^NOPERM'))
end

local function note(name, answer)
  if may(answer) then return true end
  missing[#missing + 1] = name
end

if may(redis.pcall('HEXISTS', K, 'f')) or may(redis.pcall('HRANDFIELD', K, '1')) then
  note('hexists', redis.pcall('HEXISTS', K, 'f'))
  note('hrandfield', redis.pcall('HRANDFIELD', K, '1'))
  note('time', redis.pcall('TIME'))
  note('pttl', redis.pcall('PTTL', K))
  note('persist', redis.pcall('PERSIST', K))
  note('get', redis.pcall('GET', K))
  if note('exists', redis.pcall('EXISTS', K)) then note(ARGV[7], redis.pcall('EXISTS', ARGV[7])) end
  if note('pexpire', redis.pcall('PEXPIRE', K, '0')) then
    note('set', redis.pcall('SET', K, '1'))
    note('incrby', redis.pcall('INCRBY', K, '1'))
    redis.pcall('PEXPIRE', K, '0')
  end
  if note('hdel', redis.pcall('HDEL', K, 'f')) then
    note('hset', redis.pcall('HSET', K, 'f', '1'))
    redis.pcall('HDEL', K, 'f')
  end
  note('publish to ' .. ARGV[1], redis.pcall('PUBLISH', ARGV[1], ''))
  note('pubsub numsub', redis.pcall('PUBSUB', 'NUMSUB', ARGV[1]))
end
if may(redis.pcall('HMGET', K, 'f')) or may(redis.pcall('HLEN', K)) then
  note('hmget', redis.pcall('HMGET', K, 'f'))
  note('hlen', redis.pcall('HLEN', K))
  note('hgetall', redis.pcall('HGETALL', K))
  note('del', redis.pcall('DEL', K))
  note(ARGV[8], redis.pcall('EXISTS', ARGV[8]))
  note(ARGV[9], redis.pcall('EXISTS', ARGV[9]))
  note('publish to ' .. ARGV[2], redis.pcall('PUBLISH', ARGV[2], ''))
end
if may(redis.pcall('LINDEX', K, '0')) or may(redis.pcall('HKEYS', K)) then
  note('lindex', redis.pcall('LINDEX', K, '0'))
  note('hkeys', redis.pcall('HKEYS', K))
  note('hget', redis.pcall('HGET', K, 'f'))
  note('llen', redis.pcall('LLEN', K))
  note('lpos', redis.pcall('LPOS', K, 'e'))
  note('lrange', redis.pcall('LRANGE', K, '0', '0'))
  note('lrem', redis.pcall('LREM', K, '0', 'e'))
  note('pexpireat', redis.pcall('PEXPIREAT', K, '1'))
  note('zcard', redis.pcall('ZCARD', K))
  note('zmscore', redis.pcall('ZMSCORE', K, 'm'))
  note('zrange', redis.pcall('ZRANGE', K, '0', '0'))
  note('zscore', redis.pcall('ZSCORE', K, 'm'))
  if note('lpop', redis.pcall('LPOP', K)) then
    note('rpush', redis.pcall('RPUSH', K, 'e'))
    redis.pcall('LPOP', K)
  end
  if note('zrem', redis.pcall('ZREM', K, 'm')) then
    note('zadd', redis.pcall('ZADD', K, '1', 'm'))
    redis.pcall('ZREM', K, 'm')
  end
  if may(redis.pcall('HDEL', K, 'f')) then
    note('hincrby', redis.pcall('HINCRBY', K, 'f', '1'))
    redis.pcall('HDEL', K, 'f')
  end
  for i = 3, 6 do note(ARGV[i], redis.pcall('EXISTS', ARGV[i])) end
end
return missing
