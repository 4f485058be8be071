-- Renews holds and keeps waiters of any kinds, each independently. Only lengthens.
--
-- KEYS     lock 1, lock 2, ..., then the counters of those that have a life, then further keys that
--          are only declared
-- ARGV     for each item: kind, 0 for a holder, 1 for a waiter or 2 for a waiter that is far
--          behind, owner, lease (ms), life of its counter (see lengthen.lua) or 0
-- Returns  for each item 1 if it is held by its owner, with at least the lease left; 0 if it is not
--          held, or the waiter has lost its place; -ms until another look is worthwhile if it still
--          waits; or an error.
--
-- What Redisson sees: its own renewals, of the hash and of a reader's hold key.
local reply, time = {}, call('TIME')
local now = time[1] * 1000000 + time[2]
local n = #ARGV / 5
local counters = n
for i = 1, n do
  local kind = kinds[ARGV[5 * i - 4]]
  local standing = ARGV[5 * i - 3]
  if standing ~= '0' and kind.refresh then
    pcall(kind.refresh, KEYS[i], ARGV[5 * i - 2], now, standing == '2')
  end
end
for i = 1, n do
  local kind, owner, lease = kinds[ARGV[5 * i - 4]], ARGV[5 * i - 2], tonumber(ARGV[5 * i - 1])
  local life = tonumber(ARGV[5 * i])
  reply[i] = safely(ARGV[5 * i - 3] == '0' and kind.renew or kind.stay, KEYS[i], owner, lease, now)
  if life > 0 then
    counters = counters + 1
    if reply[i] == 1 then lengthen(KEYS[counters], lease, life) end
  end
end
return reply
