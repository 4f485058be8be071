-- Makes a latch unless it exists.
--
-- KEYS     n
-- ARGV     count, channel
-- Returns  1 if it was made, 0 if it exists; 'number' if the key is not a latch.
--
-- What Redisson sees: its own trySetCount: STRING n = count, and one message `1`.
local old = redis.call('GET', KEYS[1])
if old and not string.find(old, '^%-?%d+$') then return 'number' end
if old then return 0 end
redis.call('SET', KEYS[1], ARGV[1])
redis.pcall('PUBLISH', ARGV[2], '1')
return 1
