-- Takes units of one stock for operations that travel together, each independently.
--
-- KEYS     the stock's hash, its holds, its operations
-- ARGV     latest server time (us), retention (ms), hold (ms; -1: sold), first segment (any
--          number), synced (1: what was done before is written again, so that WAIT waits for it),
--          number of records to look at for those that are over, quantity of each operation if
--          all have the same, number of arguments for each, generation that the stock must have;
--          then for each:
--            1, 2 or 4 arguments   its name
--            2 or 4 arguments      its quantity
--            4 arguments           the only segment to take from, and the token to show there (0:
--                                  none)
-- Returns  {2, now}: too late, nothing was done. {3, now}: foreign data. {4, now}: no such stock.
--          {7, now}: it is spread. {9, now}: another generation, or none.
--          Or {1, now, segments (-1: not looked up; -2: not looked up, and one answer for all),
--          answer, …} with the answers
--            k                                              all units taken now, from segment k
--            {'D', repeated, state, remaining ms, k, units, …}  done
--            {'O', state}                                   over
--            {'X', quantity, reserved}                      the id was used for something else
--            {'L', available}                               too few
--            {'C'}         too few, but more reservations are over than one call ends
--            {'F'}         an older token than was seen
--            {'?'}         foreign data
--            an error
--
-- This piece handles the usual cases only: the first segment has enough, and the operations have no
-- records. It has no functions, since defining one costs as much as a command. stock.lua and
-- stock_take_rest.lua follow it and handle everything else.
--
-- Everything that can fail comes first, and a user that may write the counts once may do so again.
-- So the counts are written before the records, for all operations that there is enough for. They
-- are corrected at the end if some records existed or could not be written.
local try, args, stock, holds, ops = redis.pcall, ARGV, KEYS[1], KEYS[2], KEYS[3]
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
if now > tonumber(args[1]) then return {2, now} end
local born = try('HGET', stock, 'b') or '0'
if type(born) ~= 'table' and born ~= args[9] then return {9, now} end
local ms, place, each, wanted = math.floor(now / 1000), args[4], tonumber(args[8]), args[7]
local over, count, answers, taken = ' ' .. string.format('%.0f', ms + args[2]) .. ' ', (#args - 9) / each, {1, now, -1}, false
local only, n = each == 4, nil

-- The cheapest path, for units that are sold at once. Without a stock or such a segment there is
-- nothing to take.
if args[3] == '-1' and not only then
  local a = 'a' .. place
  if #args == 10 then
    local left = try('HINCRBY', stock, a, '-' .. wanted)
    if type(left) == 'number' then
      if left >= 0 and try('HSETNX', ops, args[10], 'S 0 ' .. wanted .. over .. place .. ':' .. wanted) == 1 then
        answers[4], taken = tonumber(place), true
      else
        redis.call('HINCRBY', stock, a, wanted)
      end
    end
  else
    local sum, names, records, last, text = 0, {}, {}, nil, nil
    for i = 1, count do
      local at = each * i + 10 - each
      if each > 1 then wanted = args[at + 1] end
      if wanted ~= last then text, last = 'S 0 ' .. wanted .. over .. place .. ':' .. wanted, wanted end
      local name = args[at]
      if names[name] then break end
      sum, names[i], names[name], records[2 * i - 1], records[2 * i] = sum + wanted, name, true, name, text
    end
    local units = string.format('%.0f', sum)
    local left = #names == count and try('HINCRBY', stock, a, '-' .. units)
    if type(left) == 'number' then
      local seen = left >= 0 and try('HMGET', ops, unpack(names))
      local free = seen and not seen.err
      for i = 1, free and count or 0 do free = free and not seen[i] end
      if free and type(try('HSET', ops, unpack(records))) == 'number' then
        answers[3], answers[4], taken = -2, tonumber(place), true
      else
        redis.call('HINCRBY', stock, a, units)
      end
    end
  end
end
-- The same under the locks of segments, for one operation of each.
if args[3] == '-1' and only then
  local fields, counts, last = {'n'}, {}, 0
  for i = 1, count do
    local at = args[4 * i + 8]
    fields[2 * i], fields[2 * i + 1] = 'a' .. at, 'f' .. at
  end
  local seen = try('HMGET', stock, unpack(fields))
  n = tonumber(seen[1] or nil)
  local fit = n ~= nil
  for i = 1, count do
    local a, at, token = fields[2 * i], tonumber(args[4 * i + 8]), tonumber(args[4 * i + 9])
    local left = (tonumber(seen[2 * i] or 0) or 0) - args[4 * i + 7]
    local shown = tonumber(seen[2 * i + 1] or 0)
    -- Numbers above 2^53 are not exact.
    fit = fit and at < n and left >= 0 and not fields[a]
      and (token == 0 or shown and shown <= token and token < 9007199254740992)
    if not fit then break end
    fields[a], counts[last + 1], counts[last + 2], last = true, a, string.format('%.0f', left), last + 2
    if token > 0 then counts[last + 1], counts[last + 2], last = fields[2 * i + 1], args[4 * i + 9], last + 2 end
  end
  if fit and type(try('HSET', stock, unpack(counts))) == 'number' then
    taken = true
    for i = 1, count do
      local name, wanted, at = args[4 * i + 6], args[4 * i + 7], args[4 * i + 8]
      if try('HSETNX', ops, name, 'S 0 ' .. wanted .. over .. at .. ':' .. wanted) == 1 then
        answers[i + 3] = tonumber(at)
      else
        taken = false
        redis.call('HSET', stock, fields[2 * i], seen[2 * i])
        if args[4 * i + 9] ~= '0' then redis.call('HSET', stock, fields[2 * i + 1], seen[2 * i + 1] or 0) end
      end
    end
  end
end
if taken and args[6] == '0' then return answers end
-- Everything else is done one after the other. A key that is no stock, or has no such segment, may
-- have a count by now.
local k, hold, token, fence, ends = tonumber(place), tonumber(args[3]), nil, nil, nil
if not taken then
  -- If some operations were taken above, n is known.
  local found = only and n or try('HGET', stock, 'n')
  if type(found) == 'table' then return found end
  n = tonumber(found or nil)
  if k >= (n or 0) and not only then
    if redis.call('HGET', stock, 'a' .. place) == '0' then try('HDEL', stock, 'a' .. place) end
    k = k % (n or 1)
  end
  if not found then return {try('HEXISTS', stock, 'layout') == 1 and 7 or 4, now} end
  if not n then return {3, now} end
  ends = hold >= 0 and string.format('%.0f', math.ceil(now / 1000) + hold)
end
