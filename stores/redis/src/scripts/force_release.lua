-- Frees a lock of any kind, whoever holds it, and wakes its waiters. Changes nothing that is not a
-- lock. Follows kinds.lua, rw_names.lua, tokens.lua, fair_queue.lua and fair_wake.lua.
--
-- KEYS     lock, then further keys that are only declared
-- Returns  1 if it was held, 0 if it was free, or the reason why it is not a lock (see reply.rs).
--
-- What Redisson sees: its own force release, DEL and one message: `0`, or `1` on the channel of
-- readers and writers, who then all look again. Redisson leaves the hold keys of readers to expire;
-- this deletes them.
local lock = KEYS[1]
local left = call('PTTL', lock)
if left == -2 then return 0 end
if left == -1 then return 'no-ttl' end
if call('HLEN', lock) > 10000 then return 'field' end
local fields = call('HGETALL', lock)
local rw = false
for i = 1, #fields, 2 do
  local field = fields[i]
  if field == 'mode' then
    rw = true
  elseif not find(field, '^.+:%d+$') and not find(field, '^.+:%d+:write$') then
    return 'field'
  end
end
call('DEL', lock)
if rw then
  for i = 1, #fields, 2 do
    local count = find(fields[i], ':write$') and 0 or tonumber(fields[i + 1]) or 0
    for index = 1, math.min(count, 10000) do
      try('DEL', hold_of(lock, fields[i], index))
    end
  end
  tell(rw_channel(lock), '1')
else
  tell('redisson_lock__channel:' .. tag(lock), '0')
end
pcall(kinds.f.wake, lock)
return 1
