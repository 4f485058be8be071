-- Removes a latch, and wakes whoever waits for it.
--
-- KEYS     n
-- ARGV     channel
-- Returns  1 when it was there, 0 when not; 'number' when something else is there that is no latch.
--
-- What Redisson sees: DEL and one message `0`, the one that opens a latch. Its own delete says `1`,
-- which wakes nobody there: whoever waits would sleep for ever.
local text = redis.call('GET', KEYS[1])
if not text then return 0 end
if #text > 15 or not string.find(text, '^%-?%d+$') then return 'number' end
redis.call('DEL', KEYS[1])
redis.pcall('PUBLISH', ARGV[1], '0')
return 1
