-- What belongs to a read/write lock; stands behind kinds.lua.
--
--   hash     n               {mode: read or write, O: count, O:write: count}; our counts are 1, an owner is never used twice
--   hold     {n}:O:rwlock_timeout:i   one for each count of a reader, with the TTL of that hold
--   channel  redisson_rwlock:{n}      `0` when the last reader goes, `1` when a writer goes or readers may try again
--   intent   lock_rw_intent:{n}       STRING = the writer who waits, 1 s. Ours alone: Redisson's readers don't look at it

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

-- What `owner` has: 'r', 'w', or nothing; the mode; an error reply when the server refuses to say. An owner that has both
-- is asked for what it was meant to have, `kind`; else what it has counts, since an answer to a downgrade may be lost.
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

-- Gives the hash of readers the longest time that a living hold has. `false`: there is none, at most holds of the dead,
-- whose own leases are over. It is Redisson's scan: every field with a count, and every index.
local function alive(lock)
  local longest, fields = 0, call('HGETALL', lock)
  for i = 1, #fields, 2 do
    -- A count that is no honest one must not keep the server busy for ever.
    for index = 1, math.min(tonumber(fields[i + 1]) or 0, 10000) do
      local left = call('PTTL', hold_of(lock, fields[i], index))
      if left > longest then longest = left end
    end
  end
  if longest == 0 then return false end
  call('PEXPIRE', lock, longest)
  return true
end
