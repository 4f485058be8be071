-- How readers and writers give back, stop waiting, renew and linger; see kinds.lua and rw_names.lua.
--
-- What Redisson sees: its own releases and renewals. A write release publishes `1`, also when read holds of that owner
-- stay; a read release publishes `0` when no living hold is left, else nothing, and never shortens a write hold.
--
-- When memory is full a server refuses commands that may take more only as the first write of a script: every function
-- here begins with one that it never refuses.

local function free_rw(lock, owner, kind)
  local had, mode, failed = has(lock, owner, kind)
  if failed then return failed end
  if not had then return -1 end
  if had == 'w' then
    local done = try('HDEL', lock, owner .. ':write')
    if done ~= 1 then return done end
    if call('HLEN', lock) == 1 then call('DEL', lock) else call('HSET', lock, 'mode', 'read') end
    return tell(rw_channel(lock), '1')
  end
  local done = try('HDEL', lock, owner)
  if done ~= 1 then return done end
  call('DEL', hold_of(lock, owner, 1))
  if mode ~= 'read' or alive(lock) then return -3 end
  call('DEL', lock)
  return tell(rw_channel(lock), '0')
end

function kinds.r.free(lock, owner) return free_rw(lock, owner, 'r') end
function kinds.w.free(lock, owner) return free_rw(lock, owner, 'w') end

function kinds.w.leave(lock, owner)
  local intent = intent_of(lock)
  if try('GET', intent) ~= owner then return end
  call('DEL', intent)
  tell(rw_channel(lock), '1')
end

local function keep_rw(lock, owner, lease, kind)
  local had, _, failed = has(lock, owner, kind)
  if failed then return failed end
  if not had then return 0 end
  local left = call('PTTL', lock)
  if had == 'w' then
    if left < lease then call('PEXPIRE', lock, lease) end
    return 1
  end
  local hold = hold_of(lock, owner, 1)
  local done = try('PTTL', hold)
  if done == -2 then
    -- The hash is there, so no writer has been in since: the hold goes on.
    call('PEXPIRE', lock, math.max(left, lease))
    call('SET', hold, '1', 'PX', lease)
  else
    if left < lease then call('PEXPIRE', lock, lease) end
    if done < lease then call('PEXPIRE', hold, lease) end
  end
  return 1
end

function kinds.r.keep(lock, owner, lease) return keep_rw(lock, owner, lease, 'r') end
function kinds.w.keep(lock, owner, lease) return keep_rw(lock, owner, lease, 'w') end

-- A reader has nothing to keep while it waits.
function kinds.r.stay(lock, owner, lease)
  local kept = keep_rw(lock, owner, lease, 'r')
  if kept ~= 0 then return kept end
  local left = call('PTTL', intent_of(lock))
  if left < 0 then left = call('PTTL', lock) end
  return -math.max(left, 1)
end

function kinds.w.stay(lock, owner, lease)
  local had, mode, failed = has(lock, owner, 'w')
  if failed then return failed end
  if had then return keep_rw(lock, owner, lease, 'w') end
  if mode == 'read' then
    local intent = intent_of(lock)
    local writer = try('GET', intent)
    if writer == owner then
      call('PEXPIRE', intent, 1000)
    elseif not writer then
      -- Full memory refuses this; then readers go on coming in, and the writer would not be granted either.
      try('SET', intent, owner, 'PX', 1000)
    end
  end
  return -math.max(call('PTTL', lock), 1)
end

local function linger_rw(lock, owner, ms, kind)
  local had, mode, failed = has(lock, owner, kind)
  if failed then return failed end
  if not had then return 0 end
  local hold = hold_of(lock, owner, 1)
  local key, least = lock, ms
  if had == 'r' then
    key = hold
  else
    -- What the owner reads stays as it is.
    least = math.max(ms, call('PTTL', hold))
  end
  local left = call('PTTL', key)
  if left == -1 or left > least then
    call('PEXPIRE', key, least)
    if had == 'r' and mode == 'read' then alive(lock) end
    tell(rw_channel(lock), had == 'r' and '0' or '1')
  end
  return 1
end

function kinds.r.linger(lock, owner, ms) return linger_rw(lock, owner, ms, 'r') end
function kinds.w.linger(lock, owner, ms) return linger_rw(lock, owner, ms, 'w') end
