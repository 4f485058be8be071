-- Turns write holds into read holds, each independently, renews them, and wakes waiting readers.
--
-- KEYS     lock 1, lock 2, ..., then the counters of those that have a life, then further keys that
--          are only declared
-- ARGV     for each lock: owner, lease (ms), life of its counter (see lengthen.lua) or 0
-- Returns  for each lock 1 if its owner reads it now, with at least the lease left; 0 if it does
--          not hold it; or an error.
--
-- What Redisson sees: its own downgrade (the writer takes the read lock, then releases the write
-- lock), and a message `1`, which Redisson does not send there.
local function downgrade(lock, owner, lease)
  local had, _, failed = has(lock, owner, 'w')
  if failed then return failed end
  if had ~= 'w' then return keep_rw(lock, owner, lease, 'r') end
  local left = math.max(call('PTTL', lock), lease)
  -- Comes first, even if it changes nothing: full memory refuses the following commands only as the
  -- first write of a script.
  call('PEXPIRE', lock, left)
  call('SET', hold_of(lock, owner, 1), '1', 'PX', left)
  call('HSET', lock, 'mode', 'read', owner, '1')
  call('HDEL', lock, owner .. ':write')
  tell(rw_channel(lock), '1')
  return 1
end

local reply, counters = {}, #ARGV / 3
for i = 1, #ARGV / 3 do
  local lease, life = tonumber(ARGV[3 * i - 1]), tonumber(ARGV[3 * i])
  reply[i] = safely(downgrade, KEYS[i], ARGV[3 * i - 2], lease)
  if life > 0 then
    counters = counters + 1
    if reply[i] == 1 then lengthen(KEYS[counters], lease, life) end
  end
end
return reply
