-- What belongs to a read/write lock; stands behind kinds.lua.
--
--   hash n {mode: read or write, O: count, O:write: count}; our counts are 1, an owner is never
--   used twice hold {n}:O:rwlock_timeout:i one for each count of a reader, with the TTL of that
--   hold channel redisson_rwlock:{n} `0` when the last reader goes, `1` when a writer goes or
--   readers may try again intent lock_rw_intent:{n} STRING = the writer who waits, 1 s. Ours alone:
--   Redisson's readers don't look at it

-- As in store/mod.rs.
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

-- What `owner` has: 'r', 'w', or nothing; the mode; an error reply when the server refuses to say.
-- An owner that has both is asked for what it was meant to have, `kind`; else what it has counts,
-- since an answer to a downgrade may be lost.
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

-- Of more fields than this, not all are looked at when a reader goes;
local SAMPLE = 64
-- the hash may then outlive the last hold by so many ms.
local SLACK = 1000

-- The longest time that a living hold of these has, of fields and counts as HGETALL returns them.
-- It is Redisson's scan: every field with a count, and every index.
local function longest(lock, fields)
  local most = 0
  for i = 1, #fields, 2 do
    -- A count that is no honest one must not keep the server busy for ever.
    for index = 1, math.min(tonumber(fields[i + 1]) or 0, 10000) do
      most = math.max(most, call('PTTL', hold_of(lock, fields[i], index)))
    end
  end
  return most
end

-- A hold that had `own` ms left has gone, or has become shorter. Gives the hash of readers the time
-- of the living hold that lasts longest. Returns `false` if no hold lives: the hash may still have
-- holds of dead readers, whose leases are over.
local function others_live(lock, own)
  if call('HLEN', lock) > SAMPLE then
    local left = call('PTTL', lock)
    -- Whoever gave the hash its time is still there, or another who lasts about as long.
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
