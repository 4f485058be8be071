-- Counts a latch down by one, once for each id.
--
-- KEYS     n, lock_latch_done:{n}:<id> (a key of ours: the id has counted)
-- ARGV     latest server time (us), channel, how long the id is remembered (ms)
-- Returns  {1, now, count that is left}; {2, now} if this arrived after the latest server time;
--          {3, now, 'number'} if the key is not a latch. now in us.
--
-- What Redisson sees: its own countDown: DECR, and at zero DEL and one message `0`. For a latch
-- that does not exist or is at zero, nothing is left and nobody is told.
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
if now > tonumber(ARGV[1]) then return {2, now} end
local text = redis.call('GET', KEYS[1])
if text and (#text > 15 or not string.find(text, '^%-?%d+$')) then return {3, now, 'number'} end
local count = tonumber(text or 0)
if count <= 0 then
  if text then redis.call('DEL', KEYS[1]) end
  return {1, now, 0}
end
if redis.call('EXISTS', KEYS[2]) == 1 then return {1, now, count} end
-- Removes nothing. But after a write the server refuses no others for lack of memory, and it shows
-- whether the user may remove the key.
redis.call('DEL', KEYS[2])
redis.call('SET', KEYS[2], '1', 'PX', ARGV[3])
if count == 1 then
  redis.call('DEL', KEYS[1])
  redis.pcall('PUBLISH', ARGV[2], '0')
  return {1, now, 0}
end
local left = redis.pcall('INCRBY', KEYS[1], -1)
if type(left) ~= 'number' then
  redis.call('DEL', KEYS[2])
  return left
end
return {1, now, left}
