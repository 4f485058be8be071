-- take(now, items, lease, want, ttl, floor): takes every lock of `items` or none, whatever state they and their counters
-- are in. Shared by the scripts that acquire; not a script by itself.
--
-- now    server time (us)
-- items  {{lock, counter, owner}, ...}
-- lease  ms; want: tokens for each item; ttl: counter time to live (ms; 0 = keep for ever); floor: tokens are above it
--        (0 = none). All as text, as they came.
-- Returns
--   top                              granted; every counter is at `top` and the server time is top - tokens wanted
--   {1, now, 'top 1', 'top 2', ...}  granted, each item with its own highest token, as text (may exceed 2^53)
--   {0, now, item, ttl in ms}        busy: `item` is held by another owner
--   {3, now, item, reason}           `item` is somebody's data and not a lock; reasons are listed in reply.rs
--   {4, now, item}                   the counter of `item` is not an integer
-- All times in us but the ttl. Nothing was changed in the cases 0, 3 and 4.
--
-- What Redisson sees: lock = HASH {owner: 1} with a TTL; counter = STRING, an integer, as RFencedLock's INCR leaves it.
--
-- Scripts have no roll-back, so whatever can fail comes first: locks are looked at, counters are read, counters are
-- moved (out of memory, read-only and overflow show here), and only then the locks are written.

local call = redis.call

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

local function take(now, items, lease, want, ttl, floor)
  local lefts, raws = {}, {}
  lease, ttl = tonumber(lease), tonumber(ttl)

  for i, item in ipairs(items) do
    local left = call('PTTL', item[1])
    if left == -1 then return {3, now, i, 'no-ttl'} end
    if left >= 0 and call('HEXISTS', item[1], item[3]) == 0 then
      for _, field in ipairs(call('HRANDFIELD', item[1], 8)) do
        if field ~= 'mode' and not string.find(field, '^.+:%d+$') and not string.find(field, '^.+:%d+:write$') then
          return {3, now, i, 'field'}
        end
      end
      return {0, now, i, left}
    end
    lefts[i] = left
  end

  for i, item in ipairs(items) do
    local raw = call('GET', item[2])
    if raw and raw ~= '0' and not string.find(raw, '^%-?[1-9]%d*$') then return {4, now, i} end
    if (raw and #raw > 18 or #floor > 18) and not room(raw, floor, tonumber(want)) then
      return redis.error_reply('ERR increment or decrement would overflow')
    end
    raws[i] = raw
  end

  local top, low, tops = now + want, tonumber(floor) < now, nil
  local text = string.format('%.0f', top)
  for i, item in ipairs(items) do
    local counter, raw = item[2], raws[i]
    local cur = raw and tonumber(raw) or 0
    if low and cur < now then
      -- The usual case: the counter follows the server's clock.
      if ttl == 0 then
        call('SET', counter, text)
      elseif not raw then
        call('SET', counter, text, 'PX', ttl)
      else
        call('SET', counter, text, 'KEEPTTL')
        -- The TTL is refreshed by the first grant in each eighth of it: a PTTL less for all the others.
        if now - cur > now % (ttl * 125) then refresh(counter, ttl) end
      end
      if tops then tops[i + 2] = text end
    else
      if not tops then
        tops = {1, now}
        for j = 1, i - 1 do tops[j + 2] = text end
      end
      tops[i + 2] = advance(counter, raw, now, floor, want, ttl)
      if ttl > 0 then refresh(counter, ttl) end
    end
  end

  for i, item in ipairs(items) do
    local done = redis.pcall('HSET', item[1], item[3], 1)
    if type(done) == 'number' and lefts[i] < lease then done = redis.pcall('PEXPIRE', item[1], lease) end
    if type(done) ~= 'number' then
      -- Only a user without the right to do this gets here. A lock must never be left without a TTL.
      for j = 1, i do
        if lefts[j] == -2 then redis.pcall('HDEL', items[j][1], items[j][3]) end
      end
      return done
    end
  end
  return tops or top
end
