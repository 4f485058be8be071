-- Releases items of any kinds later: they stay taken, but at most for the given time from now.
-- Never lengthens.
--
-- KEYS     lock 1, lock 2, ..., then further keys that are only declared
-- ARGV     time (ms), kind 1, owner 1, kind 2, owner 2, ...
-- Returns  for each item 1 if its owner still held it, else 0; or an error.
--
-- What Redisson sees: a shorter TTL, and one message: waiters look again and learn the new TTL.
local reply = {}
for i = 1, (#ARGV - 1) / 2 do
  reply[i] = safely(kinds[ARGV[2 * i]].linger, KEYS[i], ARGV[2 * i + 1], tonumber(ARGV[1]))
end
return reply
