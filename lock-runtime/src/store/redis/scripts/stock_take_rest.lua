-- The end of stock_take.lua: operations that were sent before, and units that the first segment does not have.
local ms = math.floor(now / 1000)
if taken then
  purge(stock, 2, ms)
  return taken
end
-- What the segments have, as far as it is known.
local known, total

-- The operation has a record.
local function again(key, text, record, quantity)
  if record.state == 'H' and record.ends <= ms then
    record.state, known = 'E', nil
    local may = try('ZREM', holds, '')
    if type(may) == 'table' then return may end
    move(stock, record, 'h', 'a', n)
    local done = try('SET', key, write(record), 'PX', retention)
    if done.err then
      move(stock, record, 'a', 'h', n)
      return done
    end
    call('ZREM', holds, string.sub(key, #stock + 5))
  end
  if record.state == 'N' then return {'O', 'C'} end
  local reserved = hold >= 0 and '1' or '0'
  if record.state == 'R' or record.quantity ~= quantity or record.reserved ~= reserved then
    return {'X', record.quantity, tonumber(record.reserved)}
  end
  if record.state ~= 'S' and record.state ~= 'H' then return {'O', record.state} end
  if args[5] == '1' then
    local done = try('SET', key, text, 'KEEPTTL')
    if done.err then return done end
  end
  local answer = {'D', 1, record.state, record.state == 'H' and record.ends - math.ceil(now / 1000) or -1}
  for at, units in gmatch(record.parts, ' (%d+):(%d+)') do
    answer[#answer + 1] = tonumber(at)
    answer[#answer + 1] = tonumber(units)
  end
  return answer
end

-- Which units: the first segment that has enough, from the one to be looked at first, else as few segments as possible.
local function plan(quantity)
  if not known then
    local fields = {}
    for at = 0, n - 1 do fields[at + 1] = 'a' .. at end
    known, total = call('HMGET', stock, unpack(fields)), 0
    for at = 1, n do
      known[at] = tonumber(known[at] or 0)
      total = total + known[at]
    end
  end
  if total < quantity then return nil end
  local order = {}
  for i = 0, n - 1 do
    local at = (k + i) % n
    if known[at + 1] >= quantity then return {{at, quantity}} end
    order[i + 1] = at
  end
  table.sort(order, function(x, y) return known[x + 1] > known[y + 1] or known[x + 1] == known[y + 1] and x < y end)
  local parts, missing = {}, quantity
  for _, at in ipairs(order) do
    if missing == 0 then break end
    local units = math.min(known[at + 1], missing)
    parts[#parts + 1], missing = {at, units}, missing - units
  end
  return parts
end

local function take(key, quantity)
  local text = try('GET', key)
  if type(text) == 'table' then return find(text.err, 'WRONGTYPE') and {'?'} or text end
  local record, bad = read(text, ms)
  if bad then return {'?'} end
  if record then return again(key, text, record, quantity) end
  if only then
    if stale and k < n then return {'F'} end
    local left = k < n and number(stock, 'a' .. place) or 0
    if left < quantity then return {'L', left} end
  end
  local parts = plan(quantity)
  if not parts then return {'L', total} end

  local fields, list = {}, {}
  local answer = {'D', 0, hold < 0 and 'S' or 'H', hold}
  for i, part in ipairs(parts) do
    local at, units = part[1], part[2]
    fields[i] = 'h' .. at
    list[i] = ' ' .. at .. ':' .. string.format('%.0f', units)
    answer[#answer + 1], answer[#answer + 2] = at, units
  end
  local counts, before = {}, {}
  for _, part in ipairs(parts) do
    local at, units, last = part[1], part[2], #counts
    counts[last + 1], counts[last + 2] = 'a' .. at, known[at + 1] - units
    before[last + 1], before[last + 2] = 'a' .. at, known[at + 1]
  end
  if fence then
    before[#before + 1], before[#before + 2] = fence, number(stock, fence)
    counts[#counts + 1], counts[#counts + 2] = fence, token
  end
  if ends then
    for i, old in ipairs(call('HMGET', stock, unpack(fields))) do
      local last = #counts
      old = tonumber(old or 0)
      counts[last + 1], counts[last + 2] = fields[i], old + parts[i][2]
      before[last + 1], before[last + 2] = fields[i], old
    end
  end
  local done = ends and try('ZADD', holds, 'XX', 0, '')
  if type(done) == 'table' then return done end
  done = try('HSET', stock, unpack(counts))
  if type(done) == 'table' then return done end
  local new = (ends and 'H 1 ' or 'S 0 ') .. string.format('%.0f', quantity) .. ' ' .. (ends or '0') .. table.concat(list)
  done = ends and try('SET', key, new) or not ends and try('SET', key, new, 'PX', retention)
  if done.err then
    call('HSET', stock, unpack(before))
    return done
  end
  if ends then call('ZADD', holds, ends, string.sub(key, #stock + 5)) end
  for _, part in ipairs(parts) do known[part[1] + 1] = known[part[1] + 1] - part[2] end
  total = total - quantity
  return answer
end

answers[3] = n
for i = 1, count do
  if not answers[i + 3] then
    local at = each * i + 7 - each
    if only then
      place, token = args[at + 1], args[at + 2]
      k, fence = tonumber(place), token ~= '0' and 'f' .. place
      stale = fence and tonumber(token) < number(stock, fence)
    end
    answers[i + 3] = take(keys[i + 2], tonumber(args[at]))
  end
end
return answers
