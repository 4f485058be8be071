-- How fair locks are given back, renewed and waited for; see kinds.lua. Stands behind fair_wake.lua and mutex_free.lua.
--
-- What Redisson sees: its own release: the field goes, and the key with its last field; then see fair_wake.lua. Its own
-- renewal, and its own waiter who gives up.
--
-- Full memory refuses nothing here: the first write is one that it never refuses, and with that the others are let through.

function kinds.f.free(lock, owner)
  local done = try('HDEL', lock, owner)
  if done == 0 then return -1 end
  if done ~= 1 then
    if overwritten(done) then return -1 end
    return done
  end
  -- The release stands, whatever is wrong with the queue.
  local ok, told = pcall(kinds.f.wake, lock, owner)
  return ok and told or 0
end

function kinds.f.leave(lock, owner)
  local f = fair(lock)
  local first = try('LINDEX', f.queue, 0)
  -- Nobody waits, or the queue is somebody's data.
  if type(first) ~= 'string' then return end
  take_out(f, owner)
  local head = head_of(f)
  if head and head ~= first and call('EXISTS', lock) == 0 then wake(f) end
end

kinds.f.keep = kinds.m.keep

-- The managers that are known to live, of each lock.
local kept = {}

-- What every waiter of a call does before the first of them lets go of the dead.
function kinds.f.refresh(lock, owner, now, far)
  local f = fair(lock, now)
  local record = record_of(call('HGET', f.alive, owner))
  if not record then return end
  live(f, owner, record, f.ms + (far and FAR_LIFE or WAITER_LIFE))
  local manager = string.match(owner, '^(.*):')
  if kept[lock .. manager] then return end
  kept[lock .. manager] = true
  if call('HSET', f.managers, manager, digits(f.ms + WAITER_LIFE)) == 1 then call('PEXPIRE', f.managers, 10000) end
end

-- What all waiters of a call for one lock share.
local looks = {}

-- Whether `owner` still has its place, whose deadline stays ahead of the clock then.
local function keeps_place(f, owner)
  -- scan() has looked at all.
  if f.queued then return f.queued[owner] end
  local score = tonumber(call('ZSCORE', f.timeout, owner))
  if not score or call('HEXISTS', f.alive, owner) == 0 then
    take_out(f, owner)
    return false
  end
  if score < f.ms + KEPT_AHEAD then call('ZADD', f.timeout, 'XX', digits(f.ms + LONGEST_WAIT), owner) end
  return true
end

-- How a waiter stands: 0 when it has lost its place, else -ms until another look is worth it.
local function standing(lock, owner, now)
  local look = looks[lock]
  if not look then
    local f = fair(lock, now)
    local head, record, gone = head_of(f)
    -- A record whose entry Redisson has purged may make up for an entry of Redisson's in whole().
    for _, id in ipairs(call('HRANDFIELD', f.alive, 2)) do
      if not call('ZSCORE', f.timeout, id) then call('HDEL', f.alive, id) end
    end
    if not whole(f) then scan(f, 0, 0, KEPT_AHEAD) end
    expire(f)
    local left = call('PTTL', lock)
    if head and left == -2 then
      left = patience(f, head, record)
      if gone or not record then tell(f.channel .. ':' .. head, '0') end
    else
      head = nil
    end
    look = {fair = f, head = head, left = math.max(left, 1)}
    looks[lock] = look
  end
  if not keeps_place(look.fair, owner) then return 0 end
  if look.head == owner then return -1 end
  return -look.left
end

function kinds.f.stay(lock, owner, lease, now)
  local kept = kinds.f.keep(lock, owner, lease)
  if kept ~= 0 then return kept end
  -- When the queue is somebody's data its place is gone, and the next wish hears why. Others of this call are kept.
  local ok, answer = pcall(standing, lock, owner, now)
  return ok and answer or 0
end

function kinds.f.linger(lock, owner, ms)
  local mine = field_of(lock, owner)
  if mine ~= 1 then return mine end
  local left = call('PTTL', lock)
  if left == -1 or left > ms then
    call('PEXPIRE', lock, ms)
    local f = fair(lock)
    local head = try('LINDEX', f.queue, 0)
    if type(head) == 'string' then tell(f.channel .. ':' .. head, '0') end
  end
  return 1
end
