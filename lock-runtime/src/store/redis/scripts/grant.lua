-- grant(a): takes every lock of KEYS or none. Shared by acquire.lua and takeover.lua; not a script by itself.
--
-- KEYS  lock 1, counter 1, lock 2, counter 2, ...
-- ARGV  from a + 1 on: lease (ms), tokens wanted, counter time to live (ms; 0 = keep for ever),
--       latest server time (us), token floor (0 = none), owner 1, owner 2, ...
-- Returns
--   top                              granted; every counter is at `top` and the server time is top - tokens wanted
--   {1, now, 'top 1', 'top 2', ...}  granted, each item with its own highest token, as text (may exceed 2^53)
--   {0, now, item, ttl in ms}        busy: `item` is held by another owner
--   {2, now}                         refused: arrived later than `latest`
--   {3, now, item, reason}           `item` is somebody's data and not a lock; reasons are listed in reply.rs
--   {4, now, item}                   the counter of `item` is not an integer
-- All times in us but the ttl. Nothing was changed in the cases 0, 2, 3 and 4.
--
-- What Redisson sees: lock = HASH {owner: 1} with a TTL; counter = STRING, an integer, as RFencedLock's INCR leaves it.
--
-- Scripts have no roll-back, so whatever can fail comes first: locks are looked at, counters are read, counters are
-- moved (out of memory, read-only and overflow show here), and only then the locks are written.

local call = redis.call -- looked up once: it is called six times on the plain path

-- Whether a and b, both decimal texts without sign and leading zeros, are in the order a < b. Exact above 2^53.
local function less(a, b)
  if #a ~= #b then return #a < #b end
  return a < b
end

-- Whether `want` more tokens above both the counter and the floor fit into the server's integers. Exact, as text.
local function room(raw, floor, want)
  local limit = string.format('922337203685%07d', 4775807 - want)
  local high = raw and string.sub(raw, 1, 1) ~= '-' and raw or '0'
  return not less(limit, high) and not less(limit, floor)
end

-- Moves a counter that is ahead of the server's clock, or that has to pass a floor, exactly. Rare.
local function advance(counter, raw, now, floor, want, ttl)
  local base = string.format('%.0f', now)
  if floor ~= '0' and less(base, floor) then base = floor end
  if not raw then
    if ttl > 0 then call('SET', counter, base, 'PX', ttl) else call('SET', counter, base) end
  elseif tonumber(raw) < now or less(raw, base) then
    call('SET', counter, base, 'KEEPTTL')
  end
  call('INCRBY', counter, want)
  if ttl == 0 then call('PERSIST', counter) end
  return call('GET', counter)
end

-- Gives the counter its full time to live again, unless it has none: it is Redisson's then and stays for ever.
local function refresh(counter, ttl)
  local left = call('PTTL', counter)
  if left ~= -1 and left < ttl then call('PEXPIRE', counter, ttl) end
end

local function grant(a)
  local t = call('TIME')
  local now = t[1] * 1000000 + t[2]
  if now > tonumber(ARGV[a + 4]) then return {2, now} end
  local lefts, raws, n = {}, {}, #KEYS / 2

  for i = 1, n do
    local lock = KEYS[2 * i - 1]
    local left = call('PTTL', lock)
    if left == -1 then return {3, now, i, 'no-ttl'} end
    if left >= 0 and call('HEXISTS', lock, ARGV[a + 5 + i]) == 0 then
      for _, field in ipairs(call('HRANDFIELD', lock, 8)) do
        if field ~= 'mode' and not string.find(field, '^.+:%d+$') and not string.find(field, '^.+:%d+:write$') then
          return {3, now, i, 'field'}
        end
      end
      return {0, now, i, left}
    end
    lefts[i] = left
  end

  for i = 1, n do
    local raw = call('GET', KEYS[2 * i])
    if raw and raw ~= '0' and not string.find(raw, '^%-?[1-9]%d*$') then return {4, now, i} end
    if (raw and #raw > 18 or #ARGV[a + 5] > 18) and not room(raw, ARGV[a + 5], tonumber(ARGV[a + 2])) then
      return redis.error_reply('ERR increment or decrement would overflow')
    end
    raws[i] = raw
  end

  local lease, want, ttl, floor = tonumber(ARGV[a + 1]), ARGV[a + 2], tonumber(ARGV[a + 3]), ARGV[a + 5]
  local top, low, tops = now + want, tonumber(floor) < now, nil
  for i = 1, n do
    local counter, raw = KEYS[2 * i], raws[i]
    local cur = raw and tonumber(raw) or 0
    if low and cur < now then
      -- The usual case: the counter follows the server's clock.
      if ttl == 0 then
        call('SET', counter, top)
      elseif not raw then
        call('SET', counter, top, 'PX', ttl)
      else
        call('SET', counter, top, 'KEEPTTL')
        -- The TTL is refreshed by the first grant in each eighth of it: a PTTL less for all the others.
        local eighth = ttl * 125
        if math.floor(now / eighth) ~= math.floor(cur / eighth) then refresh(counter, ttl) end
      end
      if tops then tops[i + 2] = string.format('%.0f', top) end
    else
      if not tops then
        tops = {1, now}
        for j = 1, i - 1 do tops[j + 2] = string.format('%.0f', top) end
      end
      tops[i + 2] = advance(counter, raw, now, floor, want, ttl)
      if ttl > 0 then refresh(counter, ttl) end
    end
  end

  for i = 1, n do
    local lock = KEYS[2 * i - 1]
    local done = redis.pcall('HSET', lock, ARGV[a + 5 + i], 1)
    if type(done) == 'number' and lefts[i] < lease then done = redis.pcall('PEXPIRE', lock, lease) end
    if type(done) ~= 'number' then
      -- Only a user without the right to do this gets here. A lock must never be left without a TTL.
      for j = 1, i do
        if lefts[j] == -2 then redis.pcall('HDEL', KEYS[2 * j - 1], ARGV[a + 5 + j]) end
      end
      return done
    end
  end
  return tops or top
end
