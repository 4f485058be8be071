-- How readers and writers release, stop waiting, renew and linger; see kinds.lua and rw_names.lua.
--
-- What Redisson sees: its own releases and renewals. A write release publishes `1`, even if read
-- holds of that owner stay. A read release publishes `0` if no living hold is left, else nothing,
-- and never shortens a write hold.
--
-- When memory is full a server refuses commands that may need more only as the first write of a
-- script. So a function that needs one begins with another command.

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
  -- The key that may be at another server while a slot moves comes first, before anything has
  -- changed. Without its hold key the hold was over already, and only the field was left.
  local hold = hold_of(lock, owner, 1)
  local own = try('PTTL', hold)
  if type(own) ~= 'number' then return own end
  local lived = try('DEL', hold)
  if type(lived) ~= 'number' then return lived end
  lived = lived == 1
  local done = try('HDEL', lock, owner)
  if done ~= 1 then return done end
  if mode ~= 'read' or others_live(lock, math.max(own, 0)) then return lived and -3 or -1 end
  call('DEL', lock)
  local told = tell(rw_channel(lock), '0')
  return lived and told or -1
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
  if had == 'r' then
    -- The hash may outlive a reader as long as others read; the reader's own lease counts.
    local hold = hold_of(lock, owner, 1)
    local own = call('PTTL', hold)
    if own == -2 then return 0 end
    if own < lease then call('PEXPIRE', hold, lease) end
  end
  if call('PTTL', lock) < lease then call('PEXPIRE', lock, lease) end
  return 1
end

function kinds.r.renew(lock, owner, lease) return keep_rw(lock, owner, lease, 'r') end
function kinds.w.renew(lock, owner, lease) return keep_rw(lock, owner, lease, 'w') end

-- A waiting reader has nothing to keep.
function kinds.r.stay(lock, owner, lease)
  local had, mode, failed = has(lock, owner, 'r')
  if failed then return failed end
  if had and keep_rw(lock, owner, lease, 'r') == 1 then return 1 end
  local left = call('PTTL', lock)
  if left == -2 or mode == 'read' then left = call('PTTL', intent_of(lock)) end
  -- An intent without a TTL is not ours; an occasional look is enough.
  if left == -1 then return -INTENT_LIFE end
  return -math.max(left, 1)
end

function kinds.w.stay(lock, owner, lease)
  local had, mode, failed = has(lock, owner, 'w')
  if failed then return failed end
  if had and keep_rw(lock, owner, lease, 'w') == 1 then return 1 end
  if mode == 'read' then
    local intent = intent_of(lock)
    local writer = try('GET', intent)
    if writer == owner then
      call('PEXPIRE', intent, INTENT_LIFE)
    elseif not writer then
      -- Whether it may set an intent depends on the whole request, which must be sent again.
      return -1
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
    -- The owner's read hold stays as it is.
    least = math.max(ms, call('PTTL', hold))
  end
  local left = call('PTTL', key)
  if left == -2 then return 0 end
  if left == -1 or left > least then
    call('PEXPIRE', key, least)
    if had == 'r' and mode == 'read' then others_live(lock, left) end
    tell(rw_channel(lock), had == 'r' and '0' or '1')
  end
  return 1
end

function kinds.r.linger(lock, owner, ms) return linger_rw(lock, owner, ms, 'r') end
function kinds.w.linger(lock, owner, ms) return linger_rw(lock, owner, ms, 'w') end
