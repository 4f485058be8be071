-- Which of the commands and keys that locks need the user may not use.
--
-- KEYS     a lock that nobody has
-- ARGV     its two channels, then its other keys: those of a fair queue, the counter, the intent, the hold of a reader
-- Returns  what is missing: commands in small letters, names as they are
--
-- What Redisson sees: nothing. Each type of data is written under the name of the lock, and is gone before the script ends.
-- What can't be removed again is not written.
local K, missing = KEYS[1], {}
local function note(name, answer)
  local refused = type(answer) == 'table' and answer.err
  refused = refused and (string.find(refused, "user executing the script can't", 1, true) or string.find(refused, '^NOPERM'))
  if refused then missing[#missing + 1] = name end
  return not refused
end

-- It is somebody's after all.
if redis.pcall('EXISTS', K) == 1 then return missing end
if note('exists', redis.pcall('EXISTS', K)) then
  for i = 3, #ARGV do note(ARGV[i], redis.pcall('EXISTS', ARGV[i])) end
end
for i = 1, 2 do note('publish to ' .. ARGV[i], redis.pcall('PUBLISH', ARGV[i], '')) end
note('time', redis.pcall('TIME'))
note('pttl', redis.pcall('PTTL', K))
note('persist', redis.pcall('PERSIST', K))
note('get', redis.pcall('GET', K))
note('del', redis.pcall('DEL', K))
if note('pexpire', redis.pcall('PEXPIRE', K, '0')) then
  note('set', redis.pcall('SET', K, '1'))
  note('incrby', redis.pcall('INCRBY', K, '1'))
  note('pexpireat', redis.pcall('PEXPIREAT', K, '1'))
  redis.pcall('PEXPIRE', K, '0')
end
note('hexists', redis.pcall('HEXISTS', K, 'f'))
note('hrandfield', redis.pcall('HRANDFIELD', K, '1'))
note('hget', redis.pcall('HGET', K, 'f'))
note('hgetall', redis.pcall('HGETALL', K))
note('hkeys', redis.pcall('HKEYS', K))
note('hlen', redis.pcall('HLEN', K))
note('hmget', redis.pcall('HMGET', K, 'f'))
if note('hdel', redis.pcall('HDEL', K, 'f')) then
  note('hset', redis.pcall('HSET', K, 'f', '1'))
  note('hincrby', redis.pcall('HINCRBY', K, 'f', '1'))
  redis.pcall('HDEL', K, 'f')
end
note('lindex', redis.pcall('LINDEX', K, '0'))
note('llen', redis.pcall('LLEN', K))
note('lpos', redis.pcall('LPOS', K, 'e'))
note('lrange', redis.pcall('LRANGE', K, '0', '0'))
note('lrem', redis.pcall('LREM', K, '0', 'e'))
if note('lpop', redis.pcall('LPOP', K)) then
  note('rpush', redis.pcall('RPUSH', K, 'e'))
  redis.pcall('LPOP', K)
end
note('zcard', redis.pcall('ZCARD', K))
note('zmscore', redis.pcall('ZMSCORE', K, 'm'))
note('zrange', redis.pcall('ZRANGE', K, '0', '0'))
note('zscore', redis.pcall('ZSCORE', K, 'm'))
if note('zrem', redis.pcall('ZREM', K, 'm')) then
  note('zadd', redis.pcall('ZADD', K, '1', 'm'))
  redis.pcall('ZREM', K, 'm')
end
return missing
