-- Undoes an acquire of items of any kinds: frees whatever its owners hold, ends their waiting, and
-- wakes the waiters that this concerns.
--
-- KEYS     lock 1, lock 2, ..., then further keys that are only declared
-- ARGV     kind 1, owner 1, kind 2, owner 2, ...
-- Returns  the server time (us): past the acquire's `latest`, no late copy of it can take anything,
--          or wait.
--
-- What Redisson sees: releases; nothing if nothing was held.
local failed = nil
for i = 1, #ARGV / 2 do
  local lock, kind, owner = KEYS[i], kinds[ARGV[2 * i - 1]], ARGV[2 * i]
  local answer = safely(function()
    local freed = kind.free(lock, owner)
    if kind.leave then kind.leave(lock, owner) end
    return freed
  end)
  if type(answer) ~= 'number' then failed = answer end
end
if failed then return failed end
local time = call('TIME')
return time[1] * 1000000 + time[2]
