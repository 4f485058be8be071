-- Undoes an acquire whose outcome is unknown: frees whatever its owners hold and wakes the waiters
-- for it. Follows free.lua.
--
-- KEYS     lock 1, lock 2, ...
-- ARGV     owner 1, channel 1, owner 2, channel 2, ...
-- Returns  the server time (us): past the acquire's `latest`, no late copy of it can take anything.
--
-- What Redisson sees: a release, see free.lua; nothing if nothing was held.
local failed = nil
for i = 1, #KEYS do
  local freed = free(KEYS[i], ARGV[2 * i - 1], ARGV[2 * i])
  if type(freed) ~= 'number' then failed = freed end
end
if failed then return failed end
local t = redis.call('TIME')
return t[1] * 1000000 + t[2]
