-- How mutexes beside items of other kinds are released, renewed and lingered; see kinds.lua. For
-- mutexes alone see free.lua, renew.lua and linger.lua. Follows free.lua.
--
-- What Redisson sees: its own release and renewal, or a shorter TTL with one message `0`.

-- Returns whether `owner` has a field, 1 or 0, or an error reply.
local function field_of(lock, owner)
  local mine = try('HEXISTS', lock, owner)
  if type(mine) == 'table' and overwritten(mine) then return 0 end
  return mine
end

local function lock_channel(lock)
  return 'redisson_lock__channel:' .. tag(lock)
end

function kinds.m.free(lock, owner)
  return free(lock, owner, lock_channel(lock))
end

function kinds.m.renew(lock, owner, lease)
  local mine = field_of(lock, owner)
  if mine == 1 and call('PTTL', lock) < lease then call('PEXPIRE', lock, lease) end
  return mine
end

-- A mutex's waiter has nothing to keep.
function kinds.m.stay(lock, owner, lease)
  local kept = kinds.m.renew(lock, owner, lease)
  if kept ~= 0 then return kept end
  return -math.max(call('PTTL', lock), 1)
end

function kinds.m.linger(lock, owner, ms)
  local mine = field_of(lock, owner)
  if mine == 1 then
    local left = call('PTTL', lock)
    if left == -1 or left > ms then
      call('PEXPIRE', lock, ms)
      tell(lock_channel(lock), '0')
    end
  end
  return mine
end
