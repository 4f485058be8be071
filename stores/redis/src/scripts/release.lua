-- Releases locks, each independently, and wakes their waiters. Follows free.lua.
--
-- KEYS     lock 1, lock 2, ...
-- ARGV     owner 1, channel 1, owner 2, channel 2, ...
-- Returns  for each lock what free() returns, see free.lua. For a single lock the bare answer, for
--          several an array.
if #KEYS == 1 then return free(KEYS[1], ARGV[1], ARGV[2]) end
local freed = {}
for i, lock in ipairs(KEYS) do freed[i] = free(lock, ARGV[2 * i - 1], ARGV[2 * i]) end
return freed
