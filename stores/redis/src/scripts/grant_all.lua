-- grant(a): takes every lock of KEYS or none, unless the request is late. Follows grant.lua. Shared
-- by acquire_all.lua and takeover.lua. Not a script by itself.
--
-- KEYS     lock 1, counter 1, lock 2, counter 2, ...
-- ARGV     from a + 1 on: lease (ms), tokens wanted, life of a counter beyond the lease (ms),
--          latest server time (us), token floor, owner 1, owner 2, ...
-- Returns  what take() returns, see grant.lua, or {2, now} if this arrived after the latest server
--          time; then nothing was changed.
local function grant(a)
  local time, items = call('TIME'), {}
  local now = time[1] * 1000000 + time[2]
  if now > tonumber(ARGV[a + 4]) then return {2, now} end
  for i = 1, #KEYS / 2 do items[i] = {KEYS[2 * i - 1], KEYS[2 * i], ARGV[a + 5 + i]} end
  return take(now, items, ARGV[a + 1], ARGV[a + 2], ARGV[a + 3], ARGV[a + 5])
end
