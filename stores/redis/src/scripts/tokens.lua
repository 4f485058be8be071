-- tokens(now, items, lease, want, life, floor): reads and moves the fencing counters of `items`,
-- all or none. Shared by every script that grants, whatever the kind. Not a script by itself.
--
-- now      server time (us)
-- items    {{lock, counter, ...}, ...}
-- lease    of the grant (ms)
-- want     tokens for each item
-- life     of a counter beyond the lease (ms; 0 = forever), see lengthen.lua
-- floor    tokens are above it (0 = none). Numbers may also be text, as they came
-- Returns  two values; the first is nil unless nothing was changed:
--            {4, now, item}   the counter of `item` is not an integer
--            an error reply   no tokens are left
--            nil, top         every counter is at `top` = now + want
--            nil, {1, now, 'top 1', 'top 2', ...}
--                             the tops differ: each item with its own highest token, as text (may
--                             exceed 2^53)
-- Raises   what the server refuses (full memory, read-only, wrong type). Scripts have no roll-back,
--          so a caller looks at the locks before, and writes them only afterwards.
--
-- What Redisson sees: counter = STRING, an integer, as RFencedLock's INCR leaves it.

local call = redis.call

-- Whether a < b, both decimal texts without sign and leading zeros. Exact above 2^53.
local function less(a, b)
  if #a ~= #b then return #a < #b end
  return a < b
end

-- Whether `want` more tokens above both the counter and the floor fit into the server's integers.
-- Exact, as text.
local function room(raw, floor, want)
  local limit = string.format('922337203685%07d', 4775807 - want)
  local high = raw and string.sub(raw, 1, 1) ~= '-' and raw or '0'
  return not less(limit, high) and not less(limit, floor)
end

-- Moves, exactly, a counter that is ahead of the server's clock or has to pass a floor. Rare.
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

local function tokens(now, items, lease, want, life, floor)
  local raws = {}
  life = tonumber(life)
  local ttl = life > 0 and lease + life or 0

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
      end
      if tops then tops[i + 2] = text end
    else
      if not tops then
        tops = {1, now}
        for j = 1, i - 1 do tops[j + 2] = text end
      end
      tops[i + 2] = advance(counter, raw, now, floor, want, ttl)
    end
    if raw and ttl > 0 then
      -- The full time, since acquire.lua relies on when the last token was granted. A counter
      -- without a TTL belongs to Redisson.
      local left = call('PTTL', counter)
      if left ~= -1 and left < ttl then call('PEXPIRE', counter, ttl) end
    end
  end
  return nil, tops or top
end
