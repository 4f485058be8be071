-- The end of stock_take.lua: handles operations that were sent before, and units that the first
-- segment does not have.
local known, total
-- Token that was last shown at the only segment that the operation may take from, as text.
local shown
-- Whether there are reservations that are over; nil before the first look.
local overdue

-- Answers for an operation that has a record.
local function again(name, text, record, quantity)
  if record.state == 'H' and record.ends <= ms then
    known = nil
    local failed = turn(stock, holds, ops, name, record, 'E', ms + args[2], n)
    if failed then return failed end
  end
  if record.state == 'N' then return {'O', 'C'} end
  local reserved = hold >= 0 and '1' or '0'
  if record.state == 'R' or record.quantity ~= quantity or record.reserved ~= reserved then
    return {'X', record.quantity, tonumber(record.reserved)}
  end
  if record.state ~= 'S' and record.state ~= 'H' then return {'O', record.state} end
  if args[5] == '1' then
    local done = try('HSET', ops, name, text)
    if type(done) == 'table' then return done end
  end
  local answer = {'D', 1, record.state, record.state == 'H' and record.ends - math.ceil(now / 1000) or -1}
  for at, units in gmatch(record.parts, ' (%d+):(%d+)') do
    answer[#answer + 1] = tonumber(at)
    answer[#answer + 1] = tonumber(units)
  end
  return answer
end

-- Chooses the first segment that has enough, beginning with the first segment of the call, else as
-- few segments as possible.
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

-- Ends reservations that are over because too few units are left, at most 32 in one call of this
-- script. Returns whether any ended, and an error. Sets `overdue` if there are more.
local function make_room()
  if overdue ~= nil then return false end
  overdue = false
  -- Nothing is ended for a take that a full server refuses.
  local may = try('ZADD', holds, 'XX', 0, '')
  if type(may) == 'table' then return false, may end
  local ended, _, more = expire(stock, holds, ops, 32, ms, ms + args[2], n)
  if type(ended) == 'table' then return false, ended end
  overdue, known = more, nil
  return ended > 0
end

local function take(name, quantity)
  local text = try('HGET', ops, name)
  if type(text) == 'table' then return find(text.err, 'WRONGTYPE') and {'?'} or text end
  local record, gone, bad = read(text, ms)
  if bad then return {'?'} end
  if record then return again(name, text, record, quantity) end
  if only then
    shown = fence and try('HGET', stock, fence) or '0'
    if type(shown) == 'table' then return shown end
    if not find(shown, '^%d+$') then return {'?'} end
    -- Compared as texts, which are exact above 2^53 too.
    local older = #shown ~= #token and #token < #shown or #shown == #token and token < shown
    if fence and older and k < n then return {'F'} end
    if k >= n then return {'L', 0} end
    local left = number(stock, 'a' .. place)
    local room, failed
    if left < quantity then room, failed = make_room() end
    if failed then return failed end
    if room then left = number(stock, 'a' .. place) end
    if left < quantity then return {'L', left} end
  end
  local parts = plan(quantity)
  if not parts then
    local room, failed = make_room()
    if failed then return failed end
    parts = room and plan(quantity)
    if not parts then return overdue and {'C'} or {'L', total} end
  end

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
    before[#before + 1], before[#before + 2] = fence, shown
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
  -- The replaced record may have sold something.
  if gone > 0 then
    local last, old = #counts, number(stock, 'g')
    counts[last + 1], counts[last + 2] = 'g', string.format('%.0f', old + gone)
    before[#before + 1], before[#before + 2] = 'g', string.format('%.0f', old)
  end
  local done = ends and try('ZADD', holds, 'XX', 0, '')
  if type(done) == 'table' then return done end
  done = try('HSET', stock, unpack(counts))
  if type(done) == 'table' then return done end
  local units = string.format('%.0f', quantity)
  local new = (ends and 'H 1 ' .. units .. ' ' .. ends or 'S 0 ' .. units .. string.sub(over, 1, -2)) .. table.concat(list)
  done = try('HSET', ops, name, new)
  if type(done) == 'table' then
    call('HSET', stock, unpack(before))
    return done
  end
  if ends then call('ZADD', holds, ends, name) end
  for _, part in ipairs(parts) do known[part[1] + 1] = known[part[1] + 1] - part[2] end
  total = total - quantity
  return answer
end

if not taken then answers[3] = n end
for i = 1, taken and 0 or count do
  if not answers[i + 3] then
    local at = each * i + 10 - each
    if only then
      place, token = args[at + 2], args[at + 3]
      k, fence = tonumber(place), token ~= '0' and 'f' .. place
    end
    -- An error on one operation does not affect the others.
    local ok, answer = pcall(take, args[at], tonumber(each == 1 and wanted or args[at + 1]))
    if not ok then known = nil end
    if not ok and type(answer) ~= 'table' then answer = redis.error_reply(answer) end
    answers[i + 3] = answer
  end
end
if args[6] ~= '0' then purge(stock, ops, args[6], tonumber(args[2]), ms) end
return answers
