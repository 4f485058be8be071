-- Takes units for operations. Stands behind stock.lua.
--
-- KEYS     for each operation: the stock's hash, its holds, the operation's record
-- ARGV     latest server time (us), retention (ms), then for each operation: operation, quantity, hold (ms; -1: sold),
--          first segment, only (1: that segment and no other), token (0: none)
-- Returns  {2, now}: too late, nothing was done. Or {1, now, answer, …}:
--          {'D', repeated, state, remaining ms, k, units, …}, {'O', state}, {'X', quantity, reserved}, {'L', available},
--          {'F'} an older token than was seen, {'M'} no such stock, {'?'} somebody's data
local now = server_time()
if now > tonumber(ARGV[1]) then return {2, now} end
local ms, retention = math.floor(now / 1000), ARGV[2]

local function take(stock, holds, key, at)
  local operation, quantity, hold, first = ARGV[at], tonumber(ARGV[at + 1]), tonumber(ARGV[at + 2]), tonumber(ARGV[at + 3])
  local text = try('GET', key)
  if type(text) == 'table' then return {'?'} end
  local record, bad = read(text)
  if bad then return {'?'} end
  local n = try('HGET', stock, 'n')
  if type(n) == 'table' then return {'?'} end
  if not n then return {'M'} end
  n = tonumber(n)
  if record then
    if record.state == 'H' and record.ends <= ms then
      record.state = 'E'
      local may = try('ZREM', holds, '')
      if type(may) == 'table' then return may end
      move(stock, record, 'h', 'a', n)
      local done = try('SET', key, write(record), 'PX', retention)
      if done.err then
        move(stock, record, 'a', 'h', n)
        return done
      end
      call('ZREM', holds, operation)
    end
    if record.state == 'N' then return {'O', 'C'} end
    local reserved = hold >= 0 and '1' or '0'
    if record.state == 'R' or record.quantity ~= quantity or record.reserved ~= reserved then
      return {'X', record.quantity, tonumber(record.reserved)}
    end
    if record.state ~= 'S' and record.state ~= 'H' then return {'O', record.state} end
    local answer = {'D', 1, record.state, record.state == 'H' and record.ends - math.ceil(now / 1000) or -1}
    for k, units in gmatch(record.parts, ' (%d+):(%d+)') do
      answer[#answer + 1] = tonumber(k)
      answer[#answer + 1] = tonumber(units)
    end
    return answer
  end

  local parts = {}
  local only, token = ARGV[at + 4] == '1', tonumber(ARGV[at + 5])
  if only then
    if first >= n then return {'L', 0} end
    if token > 0 then
      if token < number(stock, 'f' .. first) then return {'F'} end
      call('HSET', stock, 'f' .. first, ARGV[at + 5])
    end
  else
    first = first % n
  end
  local available = number(stock, 'a' .. first)
  if available >= quantity then
    parts[1] = {first, quantity}
  elseif only then
    return {'L', available}
  else
    -- The first of the others that has enough, else as few as possible.
    local fields = {}
    for k = 0, n - 1 do fields[k + 1] = 'a' .. (first + k) % n end
    local units, order, total = call('HMGET', stock, unpack(fields)), {}, 0
    for k = 0, n - 1 do
      local has = tonumber(units[k + 1] or 0)
      order[k + 1], total = {(first + k) % n, has}, total + has
      if has >= quantity then
        parts[1] = {(first + k) % n, quantity}
        break
      end
    end
    if not parts[1] then
      if total < quantity then return {'L', total} end
      table.sort(order, function(a, b) return a[2] > b[2] or a[2] == b[2] and a[1] < b[1] end)
      local missing = quantity
      for _, one in ipairs(order) do
        if missing == 0 then break end
        local taken = math.min(one[2], missing)
        parts[#parts + 1] = {one[1], taken}
        missing = missing - taken
      end
    end
  end

  local to, list = hold >= 0 and 'h' or 's', {}
  local answer = {'D', 0, hold >= 0 and 'H' or 'S', hold}
  for _, part in ipairs(parts) do
    local units = string.format('%.0f', part[2])
    list[#list + 1] = ' ' .. part[1] .. ':' .. units
    answer[#answer + 1], answer[#answer + 2] = part[1], part[2]
  end
  local new = {state = answer[3], reserved = hold >= 0 and '1' or '0', quantity = quantity, ends = 0, parts = table.concat(list)}
  -- Whatever can fail comes first: no memory, no right. Then the units, and the record second: who may move them may move
  -- them back.
  local may = hold >= 0 and try('ZADD', holds, 'XX', 0, '')
  if type(may) == 'table' then return may end
  -- Not before its time: the fraction of this millisecond is over already.
  if hold >= 0 then new.ends = math.ceil(now / 1000) + hold end
  move(stock, new, 'a', to, n)
  local done
  if hold >= 0 then done = try('SET', key, write(new)) else done = try('SET', key, write(new), 'PX', retention) end
  if done.err then
    move(stock, new, to, 'a', n)
    return done
  end
  if hold >= 0 then call('ZADD', holds, string.format('%.0f', new.ends), operation) end
  return answer
end

local answers = {1, now}
for i = 1, #KEYS / 3 do
  answers[i + 2] = take(KEYS[3 * i - 2], KEYS[3 * i - 1], KEYS[3 * i], 6 * i - 3)
  if answers[i + 2].err then return answers[i + 2] end
end
return answers
