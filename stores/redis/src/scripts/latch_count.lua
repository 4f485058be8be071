-- Looks at a latch. Changes nothing.
--
-- KEYS     n
-- Returns  the count, 0 when there is none; 'number' when something else is there that is no latch.
local text = redis.call('GET', KEYS[1])
if not text then return 0 end
if #text > 15 or not string.find(text, '^%-?%d+$') then return 'number' end
return tonumber(text)
