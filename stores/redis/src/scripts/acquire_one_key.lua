-- Takes a mutex without its fencing counter. The counter is still at another node: the slot is
-- moving, and no script may use both. The only token is the server's time, and the counter does not
-- move.
--
-- KEYS     lock
-- ARGV     latest server time (us), lease (ms), owner
-- Returns  what take() returns for one lock, see grant.lua, but for the number of listeners; or
--          {2, now} if this arrived after the latest server time.
--
-- Tokens still grow as long as the clock of this node is not behind the counter.
--
-- What Redisson sees: lock = HASH {owner: 1} with a TTL.
local lock, owner, lease = KEYS[1], ARGV[3], tonumber(ARGV[2])
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
if now > tonumber(ARGV[1]) then return {2, now} end
local left = redis.call('PTTL', lock)
if left == -1 then return {3, now, 1, 'no-ttl'} end
if left >= 0 and redis.call('HEXISTS', lock, owner) == 0 then
  for _, field in ipairs(redis.call('HRANDFIELD', lock, 8)) do
    if field ~= 'mode' and not string.find(field, '^.+:%d+$') and not string.find(field, '^.+:%d+:write$') then
      return {3, now, 1, 'field'}
    end
  end
  return {0, now, 1, left}
end
local done = redis.pcall('HSET', lock, owner, '1')
if type(done) == 'number' and left < lease then done = redis.pcall('PEXPIRE', lock, lease) end
if type(done) ~= 'number' then
  -- Only reached if the user lacks a right. A lock must never be left without a TTL.
  if left == -2 then redis.pcall('HDEL', lock, owner) end
  return done
end
return {1, now, string.format('%.0f', now)}
