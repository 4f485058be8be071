-- The parts of a read/write lock. Follows kinds.lua.
--
--   hash     n                         {mode: read or write, O: count, O:write: count}; our counts
--                                      are 1, since an owner is never used twice
--   hold     {n}:O:rwlock_timeout:i    one for each count of a reader, with the TTL of that hold
--   channel  redisson_rwlock:{n}       `0` when the last reader leaves, `1` when a writer leaves or
--                                      readers may try again
--   intent   lock_rw_intent:{n}        STRING = the waiting writer, 1 s. Ours alone: Redisson's
--                                      readers don't look at it

-- As INTENT_LIFE in the crate lock-core.
local INTENT_LIFE = 1000

local function hold_of(lock, owner, index)
  return tag(lock) .. ':' .. owner .. ':rwlock_timeout:' .. index
end

local function rw_channel(lock)
  return 'redisson_rwlock:' .. tag(lock)
end

local function intent_of(lock)
  return 'lock_rw_intent:' .. tag(lock)
end

-- Returns what `owner` has: 'r', 'w' or nothing; the mode; and an error reply if the server
-- refuses. An owner with both has what was meant, `kind`. An owner with one has that one, whatever
-- was meant, since the answer to a downgrade may have been lost.
local function has(lock, owner, kind)
  local found = try('HMGET', lock, 'mode', owner, owner .. ':write')
  if found.err then
    if overwritten(found) then return nil end
    return nil, nil, found
  end
  local mode, reads, writes = found[1], found[2], found[3]
  -- Without a mode it is a lock of another kind.
  if not mode then return nil end
  if writes and (kind == 'w' or not reads) then return 'w', mode end
  if reads then return 'r', mode end
  return nil, mode
end

-- Number of fields above which not all are looked at when a reader leaves.
local SAMPLE = 64
-- Maximum time (ms) by which the hash may then outlive the last hold.
local SLACK = 1000

-- Returns the longest remaining time of the living holds in `fields`, in the form of HGETALL. This
-- is Redisson's scan: every field with a count, and every index.
local function longest(lock, fields)
  local most = 0
  for i = 1, #fields, 2 do
    -- A corrupt count must not keep the server busy forever.
    for index = 1, math.min(tonumber(fields[i + 1]) or 0, 10000) do
      most = math.max(most, call('PTTL', hold_of(lock, fields[i], index)))
    end
  end
  return most
end

-- To be called after a hold with `own` ms left has gone or was shortened. Gives the readers' hash
-- the time of the living hold that lasts longest. Returns `false` if no hold lives: the hash may
-- still have holds of dead readers whose leases are over.
local function others_live(lock, own)
  if call('HLEN', lock) > SAMPLE then
    local left = call('PTTL', lock)
    -- The hold that gave the hash its time still exists, or another that lasts about as long.
    if left - own > SLACK then return true end
    local most = longest(lock, call('HRANDFIELD', lock, SAMPLE, 'WITHVALUES'))
    if left >= 0 and most > 0 and left - most <= SLACK then
      if most > left then call('PEXPIRE', lock, most) end
      return true
    end
  end
  local most = longest(lock, call('HGETALL', lock))
  if most == 0 then return false end
  call('PEXPIRE', lock, most)
  return true
end
