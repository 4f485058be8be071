-- The same as rights.lua for the plain layout. SET and INCRBY are sent without a script, too.
--
-- KEYS     a lock that nobody has
-- ARGV     the channel, ..., the counter as the seventh
-- Returns  what is missing: commands in lower case, names as they are
--
-- What others see: nothing, see rights.lua.
local K, missing = KEYS[1], {}
if type(redis.pcall('GET', K)) == 'string' then return missing end

local function note(name, answer)
  local error = type(answer) == 'table' and answer.err
  if not error or not (string.find(error, "user executing the script can't", 1, true) or string.find(error, '^NOPERM')) then
    return true
  end
  missing[#missing + 1] = name
end

note('time', redis.pcall('TIME'))
note('pttl', redis.pcall('PTTL', K))
note('get', redis.pcall('GET', K))
if note('persist', redis.pcall('PERSIST', K)) then
  -- Changes nothing, and needs the right to write.
  note(ARGV[7], redis.pcall('PERSIST', ARGV[7]))
end
if note('del', redis.pcall('DEL', K)) and note('pexpire', redis.pcall('PEXPIRE', K, '0')) then
  note('set', redis.pcall('SET', K, '1', 'PX', '1000'))
  note('incrby', redis.pcall('INCRBY', K, '1'))
  redis.pcall('DEL', K)
end
note('publish to ' .. ARGV[1], redis.pcall('PUBLISH', ARGV[1], ''))
note('pubsub numsub', redis.pcall('PUBSUB', 'NUMSUB', ARGV[1]))
return missing
