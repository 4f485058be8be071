-- How fair locks are renewed and waited for; see kinds.lua. Follows fair_queue.lua and
-- mutex_free.lua.
--
-- What Redisson sees: its own renewal.
--
-- Full memory refuses nothing here: a write that is never refused lets the others through.

kinds.f.renew = kinds.m.renew

-- The managers and owners of each lock that are known to be alive.
local kept = {}

-- Must run for all waiters of a call before the first of them removes dead waiters.
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

-- Facts shared by all waiters of a call for one lock.
local looks = {}

-- Whether `owner` still has its place; if so, keeps its deadline ahead of the clock.
local function keeps_place(f, owner)
  -- scan() has looked at all of them.
  if f.queued then return f.queued[owner] end
  local score = tonumber(call('ZSCORE', f.timeout, owner))
  if not score or not kept[f.lock .. owner] then
    take_out(f, owner)
    return false
  end
  if score < f.ms + KEPT_AHEAD then call('ZADD', f.timeout, 'XX', digits(f.ms + LONGEST_WAIT), owner) end
  return true
end

-- Returns how a waiter stands: 0 if it has lost its place, else -ms until another look is
-- worthwhile.
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
      -- A far waiter does not look by itself for a while.
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
  local kept = kinds.f.renew(lock, owner, lease)
  if kept ~= 0 then return kept end
  -- If the queue is foreign data, the place is gone, and the next request gets the error. Other
  -- items of this call are kept.
  local ok, answer = pcall(standing, lock, owner, now)
  return ok and answer or 0
end
