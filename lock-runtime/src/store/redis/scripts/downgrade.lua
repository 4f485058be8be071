-- Turns write holds into read holds, each on its own, renews them, and wakes the readers that wait.
--
-- KEYS     lock 1, lock 2, ...
-- ARGV     owner 1, lease 1 (ms), owner 2, lease 2 (ms), ...
-- Returns  for each lock 1 when its owner reads it now, with at least the lease left; 0 when it does
--          not hold it; or an error.
--
-- What Redisson sees: its own downgrade (the writer takes the read lock, then gives the write lock back), and a message
-- `1`, which Redisson forgets.
local function downgrade(lock, owner, lease)
  local had, _, failed = has(lock, owner, 'w')
  if failed then return failed end
  if had ~= 'w' then return keep_rw(lock, owner, lease, 'r') end
  local left = math.max(call('PTTL', lock), lease)
  -- First, also when it changes nothing: full memory refuses what follows only as the first write
  -- of a script.
  call('PEXPIRE', lock, left)
  call('SET', hold_of(lock, owner, 1), '1', 'PX', left)
  call('HSET', lock, 'mode', 'read', owner, '1')
  call('HDEL', lock, owner .. ':write')
  tell(rw_channel(lock), '1')
  return 1
end

local reply = {}
for i, lock in ipairs(KEYS) do reply[i] = safely(downgrade, lock, ARGV[2 * i - 1], tonumber(ARGV[2 * i])) end
return reply
