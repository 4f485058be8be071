-- Returns the count of a latch. Changes nothing.
--
-- KEYS     n
-- Returns  the count, 0 if there is no latch; 'number' if the key is not a latch.
local text = redis.call('GET', KEYS[1])
if not text then return 0 end
if #text > 15 or not string.find(text, '^%-?%d+$') then return 'number' end
return tonumber(text)
