-- Releases items of any kinds, each independently, and wakes their waiters.
--
-- KEYS     lock 1, lock 2, ..., then further keys that are only declared
-- ARGV     kind 1, owner 1, kind 2, owner 2, ...
-- Returns  for each item what free() returns, see kinds.lua. For a single item the bare answer, for
--          several an array.
--
-- What Redisson sees: see the pieces of the kinds.
local freed = {}
for i = 1, #ARGV / 2 do
  freed[i] = safely(kinds[ARGV[2 * i - 1]].free, KEYS[i], ARGV[2 * i])
end
if #freed == 1 then return freed[1] end
return freed
