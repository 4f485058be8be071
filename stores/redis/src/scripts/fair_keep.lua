-- How fair locks are renewed and waited for; see kinds.lua. Stands behind fair_queue.lua and
-- mutex_free.lua.
--
-- What Redisson sees: its own renewal.
--
-- Full memory refuses nothing here: where it does, a write that it never refuses lets the others
-- through.

kinds.f.keep = kinds.m.keep

-- The managers, and the owners, that are known to live, of each lock.
local kept = {}

-- What every waiter of a call does before the first of them lets go of the dead.
function kinds.f.refresh(lock, owner, now, far)
  local f = fair(lock, now)
  local record = record_of(call('HGET', f.alive, owner))
  if not record then return end
  live(f, owner, record, f.ms + (far and FAR_LIFE or WAITER_LIFE))
  kept[lock .. owner] = true
  local manager = string.match(owner, '^(.*):')
  if kept[lock .. manager] then return end
  kept[lock .. manager] = true
  mark(f, owner)
end

-- What all waiters of a call for one lock share.
local looks = {}

-- Whether `owner` still has its place, whose deadline stays ahead of the clock then.
local function keeps_place(f, owner)
  -- scan() has looked at all.
  if f.queued then return f.queued[owner] end
  local score = tonumber(call('ZSCORE', f.timeout, owner))
  if not score or not kept[f.lock .. owner] then
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
    if not whole(f) then
      scan(f, 0, 0, KEPT_AHEAD)
      expire(f)
    elseif call('PTTL', f.managers) < 7000 then
      expire(f)
    end
    local left = call('PTTL', lock)
    if head and left == -2 then
      left = patience(f, head, record)
      -- A far one does not look by itself for a while.
      local far = record and record.by > f.ms + WAITER_LIFE
      if gone or far or not record then tell(f.channel .. ':' .. head, '0') end
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
  -- When the queue is somebody's data its place is gone, and the next wish hears why. Others of
  -- this call are kept.
  local ok, answer = pcall(standing, lock, owner, now)
  return ok and answer or 0
end
