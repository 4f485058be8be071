-- Renews holds and keeps waiters of any kinds, each on its own. Only lengthens.
--
-- KEYS     lock 1, lock 2, ...
-- ARGV     for each item: kind, 1 for a waiter or 0 for a holder, owner, lease (ms)
-- Returns  for each item 1 when it is held by its owner, with at least the lease left; 0 when it is
--          not, or the waiter has lost its place; -ms until another look is worth it when it still
--          waits; or an error.
--
-- What Redisson sees: its own renewals: of the hash, and of a reader's hold key.
local reply, time = {}, call('TIME')
local now = time[1] * 1000000 + time[2]
for i, lock in ipairs(KEYS) do
  local kind = kinds[ARGV[4 * i - 3]]
  if ARGV[4 * i - 2] == '1' and kind.refresh then pcall(kind.refresh, lock, ARGV[4 * i - 1], now) end
end
for i, lock in ipairs(KEYS) do
  local kind, owner, lease = kinds[ARGV[4 * i - 3]], ARGV[4 * i - 1], tonumber(ARGV[4 * i])
  reply[i] = safely(ARGV[4 * i - 2] == '1' and kind.stay or kind.keep, lock, owner, lease, now)
end
return reply
