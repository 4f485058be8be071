-- What the scripts of semaphores have in common; not a script by itself.
--
-- What Redisson sees: its RPermitExpirableSemaphore. STRING n: permits left, a decimal; none at all
-- means 0. ZSET {n}:timeout: one member of 16 raw bytes for each held permit, its score the end of
-- its lease in ms, or 922337203685477 for never. Channel redisson_sc:{n}: the number of permits
-- left, in decimal, whenever some have come back. Its clients compare scores with their own clocks,
-- we with the server's.
local try, find, call = redis.pcall, string.find, redis.call
local NEVER = 922337203685477

local function server_time()
  local time = call('TIME')
  return time[1] * 1000000 + time[2]
end

-- Nothing is removed by this. But it tells whether we may remove, before something else is written;
-- and after a write the server does not refuse others for want of memory.
local function arm(timeouts)
  return try('ZREM', timeouts, '')
end

-- Gives `ids` back, which are held: all of them, or none and an error reply. Returns what is left.
local function give_back(n, timeouts, ids)
  local armed = arm(timeouts)
  if type(armed) ~= 'number' then return armed end
  local left = try('INCRBY', n, #ids)
  if type(left) ~= 'number' then return left end
  call('ZREM', timeouts, unpack(ids))
  return left
end

-- open(n, timeouts, now in us): the semaphore as it is, without the permits whose lease is over (at
-- most 1000 of them go at once). Returns {exists, left, ms = now in ms, changed}, or nil and what
-- to answer: an error reply, or {3, now, reason} when it is none (reasons are in
-- redis/semaphore.rs). Nothing was changed then.
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

-- Which of the ids ARGV[from..to] are held; returns those, and for each 1 or 0.
local function held(timeouts, from, to)
  local ids, flags = {}, {}
  for i = from, to do
    local is = call('ZSCORE', timeouts, ARGV[i]) and 1 or 0
    flags[#flags + 1] = is
    if is == 1 then ids[#ids + 1] = ARGV[i] end
  end
  return ids, flags
end

-- Wakes whoever waits, when there is something for them.
local function tell(channel, left)
  if left > 0 then try('PUBLISH', channel, left) end
end
