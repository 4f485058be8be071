-- How readers and writers acquire; see kinds.lua and rw_names.lua.
--
-- What Redisson sees: its own read and write locks, each owner with a count of 1.

-- Stores in the item what every kind of request needs: the TTL as left; then, if the hash exists,
-- its mode (false: a lock of another kind), and whether the owner reads and writes. Returns the
-- reason if it is not a lock.
local function find_rw(item)
  local lock, owner = item[1], item[3]
  item.left = call('PTTL', lock)
  if item.left == -2 then return end
  if item.left == -1 then return 'no-ttl' end
  local found = call('HMGET', lock, 'mode', owner, owner .. ':write')
  local mode, reads, writes = found[1], found[2], found[3]
  if mode and mode ~= 'read' and mode ~= 'write' then return 'field' end
  item.mode, item.reads, item.writes = mode, mode and reads, mode and writes
  -- Waiters are not the only ones who need this: a reader writes into a hash that others have made.
  if not item.reads and not item.writes and odd(lock) then return 'field' end
end

-- Returns the ms until the intent of another writer ends.
local function intended(lock, owner)
  local intent = intent_of(lock)
  local writer = call('GET', intent)
  if not writer or writer == owner then return end
  local left = call('PTTL', intent)
  -- An intent without a TTL is not ours; an occasional look is enough.
  if left == -1 then return INTENT_LIFE end
  return math.max(left, 1)
end

function kinds.r.look(item)
  local reason = find_rw(item)
  if reason then return nil, reason end
  if item.writes or (item.reads and item.mode == 'read') then return end
  if item.left == -2 or item.mode == 'read' then return intended(item[1], item[3]) end
  return item.left
end

function kinds.r.grant(item, lease)
  local lock, owner, done = item[1], item[3], 1
  if item.left == -2 then
    done = try('HSET', lock, 'mode', 'read', owner, '1')
  elseif not item.reads then
    done = try('HSET', lock, owner, '1')
  end
  if type(done) == 'number' and item.left < lease then done = try('PEXPIRE', lock, lease) end
  if type(done) ~= 'number' then return done end
  local hold = hold_of(lock, owner, 1)
  if item.reads and call('PTTL', hold) >= lease then return end
  done = try('SET', hold, '1', 'PX', lease)
  if done.err then return done end
end

function kinds.r.undo(item)
  if item.reads then return end
  if item.left == -2 then try('HDEL', item[1], 'mode', item[3]) else try('HDEL', item[1], item[3]) end
  try('DEL', hold_of(item[1], item[3], 1))
end

function kinds.w.look(item)
  local reason = find_rw(item)
  if reason then return nil, reason end
  if item.left == -2 or (item.writes and item.mode == 'write') then return end
  return item.left
end

-- Keeps out only readers, and only for a writer that found readers. If a writer that waits for a
-- writer did so, two writers taking turns would keep all readers out forever.
function kinds.w.wait(item)
  if item.mode ~= 'read' then return end
  local intent = intent_of(item[1])
  local writer = call('GET', intent)
  if not writer or writer == item[3] then call('SET', intent, item[3], 'PX', INTENT_LIFE) end
end

-- It also waits for something else, so readers may come in.
function kinds.w.do_not_wait(item)
  local intent = intent_of(item[1])
  if call('GET', intent) == item[3] then call('DEL', intent) end
end

function kinds.w.grant(item, lease)
  local lock, done = item[1], 1
  if item.left == -2 then done = try('HSET', lock, 'mode', 'write', item[3] .. ':write', '1') end
  if type(done) == 'number' and item.left < lease then done = try('PEXPIRE', lock, lease) end
  if type(done) ~= 'number' then return done end
  local intent = intent_of(lock)
  if try('GET', intent) == item[3] then try('DEL', intent) end
end

function kinds.w.undo(item)
  if item.left == -2 then try('HDEL', item[1], 'mode', item[3] .. ':write') end
end
