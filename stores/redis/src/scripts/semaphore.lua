-- What the scripts of semaphores share. Not a script by itself.
--
-- What Redisson sees: its RPermitExpirableSemaphore.
--
--   n                 STRING: permits left, in decimal; a missing key means 0
--   {n}:timeout       ZSET: one member of 16 raw bytes for each held permit; its score is the end
--                     of its lease in ms, or 922337203685477 for never
--   redisson_sc:{n}   channel: the number of permits left, in decimal, whenever some have come back
--
-- Redisson's clients compare scores with their own clocks, ours with the server's.
local try, find, call = redis.pcall, string.find, redis.call
local NEVER = 922337203685477

local function server_time()
  local time = call('TIME')
  return time[1] * 1000000 + time[2]
end

-- Removes nothing. But it shows whether the user may remove permits before anything else is
-- written, and after a write the server refuses no others for lack of memory.
local function arm(timeouts)
  return try('ZREM', timeouts, '')
end

-- Gives back `ids`, which are held: all of them, or none and an error reply. Returns the permits
-- left.
local function give_back(n, timeouts, ids)
  local armed = arm(timeouts)
  if type(armed) ~= 'number' then return armed end
  local left = try('INCRBY', n, #ids)
  if type(left) ~= 'number' then return left end
  call('ZREM', timeouts, unpack(ids))
  return left
end

-- open(n, timeouts, now in us): returns the semaphore without the permits whose lease is over (at
-- most 1000 of them are removed at once). Returns {exists, left, ms = now in ms, changed}. Or
-- returns nil and the answer, after no change: an error reply, or {3, now, reason} if the key is
-- not a semaphore (the reasons are in semaphore.rs).
local function open(n, timeouts, now)
  local text = try('GET', n)
  if type(text) == 'table' then return nil, text end
  if text and text ~= '0' and (#text > 15 or not find(text, '^%-?[1-9]%d*$')) then return nil, {3, now, 'number'} end
  local first = try('ZRANGE', timeouts, 0, 0, 'WITHSCORES')
  if first.err then return nil, first end
  if first[1] and #first[1] ~= 16 then return nil, {3, now, 'permit'} end
  local it = {exists = text and true, left = tonumber(text or 0), ms = math.floor(now / 1000), changed = false}
  if first[1] and tonumber(first[2]) <= it.ms then
    local over = call('ZRANGEBYSCORE', timeouts, '-inf', it.ms, 'LIMIT', 0, 1000)
    local left = give_back(n, timeouts, over)
    if type(left) ~= 'number' then return nil, left end
    it.left, it.changed = left, true
  end
  return it
end

-- Returns those of the ids ARGV[from..to] that are held, and 1 or 0 for each.
local function held(timeouts, from, to)
  local ids, flags = {}, {}
  for i = from, to do
    local is = call('ZSCORE', timeouts, ARGV[i]) and 1 or 0
    flags[#flags + 1] = is
    if is == 1 then ids[#ids + 1] = ARGV[i] end
  end
  return ids, flags
end

-- Wakes the waiters if permits are left for them.
local function tell(channel, left)
  if left > 0 then try('PUBLISH', channel, left) end
end
