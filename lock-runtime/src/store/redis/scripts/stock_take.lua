-- Takes units of one stock for operations that travel together, each on its own.
--
-- KEYS     the stock's hash, its holds, the record of each operation
-- ARGV     latest server time (us), retention (ms), hold (ms; -1: sold), first segment (any number), synced (1: what was done
--          before is written again, so that WAIT waits for it), arguments of each operation (1 or 3), then for each
--          operation: its quantity, and of 3 the only segment it may be taken from and the token to show there (0: none)
-- Returns  {2, now}: too late, nothing was done. {3, now}: somebody's data. {4, now}: no such stock. Or {1, now, segments (-1: not looked at), answer, …}:
--          k: all taken now, of segment k. {'D', repeated, state, remaining ms, k, units, …}, {'O', state},
--          {'X', quantity, reserved}, {'L', available}, {'F'}: an older token than was seen, {'?'}: somebody's data,
--          or the error
--
-- This part knows the usual cases only: the first segment has enough, and the operations have no records. It has no functions,
-- since making one costs as much as a command. stock.lua and stock_take_rest.lua stand behind it for everything else.
--
-- Whatever can fail comes first: who may write the counts, once, may do so again. So they are written for all operations that
-- there is enough for, before the records are, and put right at the end if some of those were there or could not be written.
local try, keys, args = redis.pcall, KEYS, ARGV
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
if now > tonumber(args[1]) then return {2, now} end
local stock, holds, count = keys[1], keys[2], #keys - 2
local place, each, taken, answers = args[4], tonumber(args[6]), nil, {1, now, -1}
local only = each > 1

-- The cheapest, for what is sold at once. What is no stock, or has no such segment, has nothing to take there.
if args[3] == '-1' and not only then
  local a, wanted = 'a' .. place, args[7]
  if count == 1 then
    local left = try('HINCRBY', stock, a, '-' .. wanted)
    if type(left) == 'number' then
      if left >= 0 then
        local done = try('SET', keys[3], 'S 0 ' .. wanted .. ' 0 ' .. place .. ':' .. wanted, 'NX', 'PX', args[2])
        if done and done.ok then return {1, now, -1, tonumber(place)} end
      end
      redis.call('HINCRBY', stock, a, wanted)
    end
  else
    local sum, records, ids, seen, last, text = 0, {}, {}, {}, nil, nil
    local tail = ' ' .. string.format('%d', math.floor(now / 1000) + args[2]) .. ' ' .. place .. ':'
    for i = 1, count do
      local key = keys[i + 2]
      if seen[key] then break end
      seen[key], wanted = true, args[i + 6]
      if wanted ~= last then text, last = 'T 0 ' .. wanted .. tail .. wanted, wanted end
      sum, records[2 * i - 1], records[2 * i], ids[i] = sum + wanted, key, text, string.sub(key, #stock + 5)
    end
    local units = string.format('%d', sum)
    local left = #ids == count and try('HINCRBY', stock, a, '-' .. units)
    if type(left) == 'number' then
      local old = 'lock_stock_old:' .. string.sub(stock, 12)
      local entry = left >= 0 and try('RPUSH', old, string.match(tail, '%d+') .. ' ' .. table.concat(ids, '\n'))
      if type(entry) == 'number' then
        if try('MSETNX', unpack(records)) == 1 then
          for i = 1, count do answers[i + 3] = tonumber(place) end
          -- What is over goes as fast as it comes.
          local first = entry > 1 and try('LINDEX', old, 0)
          if type(first) == 'string' and tonumber(string.match(first, '^%d+')) <= now / 1000 then taken = answers else return answers end
        else
          try('RPOP', old)
        end
      end
      if not taken then redis.call('HINCRBY', stock, a, units) end
    end
  end
end
-- The same under the lock of a segment, for operations of one segment each.
if args[3] == '-1' and only then
  local fields, counts = {'n'}, {}
  for i = 1, count do
    local at = args[3 * i + 5]
    fields[2 * i], fields[2 * i + 1] = 'a' .. at, 'f' .. at
  end
  local seen, fit, last = try('HMGET', stock, unpack(fields)), true, 0
  local n = tonumber(seen[1] or 0) or 0
  for i = 1, count do
    local at, token, a = args[3 * i + 5], tonumber(args[3 * i + 6]), fields[2 * i]
    local left = (tonumber(seen[2 * i] or 0) or 0) - args[3 * i + 4]
    fit = fit and tonumber(at) < n and left >= 0 and not fields[a]
    if not fit then break end
    fields[a], counts[last + 1], counts[last + 2], last = true, a, string.format('%d', left), last + 2
    if token > 0 then
      local shown = tonumber(seen[2 * i + 1] or 0)
      fit = shown and shown <= token
      counts[last + 1], counts[last + 2], last = fields[2 * i + 1], args[3 * i + 6], last + 2
    end
  end
  if fit and type(try('HSET', stock, unpack(counts))) == 'number' then
    local missing = 0
    for i = 1, count do
      local wanted, at = args[3 * i + 4], args[3 * i + 5]
      local done = try('SET', keys[i + 2], 'S 0 ' .. wanted .. ' 0 ' .. at .. ':' .. wanted, 'NX', 'PX', args[2])
      if done and done.ok then
        answers[i + 3] = tonumber(at)
      else
        missing = missing + 1
        redis.call('HSET', stock, fields[2 * i], seen[2 * i])
        if args[3 * i + 6] ~= '0' then redis.call('HSET', stock, fields[2 * i + 1], seen[2 * i + 1] or 0) end
      end
    end
    if missing == 0 then return answers end
  end
end
-- Everything else is done one after the other.
local n = try('HGET', stock, 'n')
if type(n) == 'table' then return n end
if not n then
  -- What the first try has made.
  if redis.call('HGET', stock, 'a' .. place) == '0' then try('HDEL', stock, 'a' .. place) end
  return {4, now}
end
n = tonumber(n)
if not n then return {3, now} end
local k, hold, retention, token = tonumber(place), tonumber(args[3]), args[2], 0
if k >= n and not only then
  if redis.call('HGET', stock, 'a' .. place) == '0' then try('HDEL', stock, 'a' .. place) end
  k = k % n
end
local fence, stale
local ends = hold >= 0 and string.format('%d', math.ceil(now / 1000) + hold)
