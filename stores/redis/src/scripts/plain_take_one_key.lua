-- Takes a mutex in the plain layout without its counter: the slot is moving, and no script may use
-- both. The tokens follow, see plain_count.lua.
--
-- KEYS     lock
-- ARGV     latest server time (us), lease (ms), owner
-- Returns  {1, now, '0'} if it was taken, {0, now, 1, ttl in ms} if it is busy, or {2, now} if this
--          arrived after the latest server time
--
-- What others see: see plain_take.lua.
local lock, lease, owner = KEYS[1], tonumber(ARGV[2]), ARGV[3]
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
if now > tonumber(ARGV[1]) then return {2, now} end
local value = redis.call('GET', lock)
if not value then
  redis.call('SET', lock, owner, 'PX', lease)
elseif value ~= owner then
  return {0, now, 1, redis.call('PTTL', lock)}
elseif redis.call('PTTL', lock) < lease then
  redis.call('PEXPIRE', lock, lease)
end
return {1, now, '0'}
