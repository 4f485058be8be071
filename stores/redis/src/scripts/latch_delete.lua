-- Removes a latch, and wakes its waiters.
--
-- KEYS     n
-- ARGV     channel
-- Returns  1 if it existed, 0 if not; 'number' if the key is not a latch.
--
-- What Redisson sees: DEL and one message `0`, the one that opens a latch. Its own delete sends
-- `1`, which wakes nobody: its waiters would sleep forever.
local text = redis.call('GET', KEYS[1])
if not text then return 0 end
if #text > 15 or not string.find(text, '^%-?%d+$') then return 'number' end
redis.call('DEL', KEYS[1])
redis.pcall('PUBLISH', ARGV[1], '0')
return 1
