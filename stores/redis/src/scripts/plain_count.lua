-- Moves the counter of the plain layout: to the server's clock if it is behind, and on by the
-- tokens wanted. Follows tokens.lua.
--
-- KEYS     counter
-- ARGV     tokens wanted, token floor
-- Returns  {1, now, 'top'}, {4, now, 1} if the counter is not an integer, or an error
--
-- What others see: see tokens.lua.
local time = call('TIME')
local now = time[1] * 1000000 + time[2]
local refusal, tops = tokens(now, {{false, KEYS[1]}}, 0, tonumber(ARGV[1]), 0, ARGV[2])
if refusal then return refusal end
if type(tops) == 'table' then return tops end
return {1, now, string.format('%.0f', tops)}
