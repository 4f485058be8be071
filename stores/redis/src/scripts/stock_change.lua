-- Makes a stock, puts units in, evens them out, changes the number of segments. Follows stock.lua
-- and stock_fill.lua.
--
-- KEYS     the stock's hash, its operations
-- ARGV     latest server time (us), how, …
--            init: the generation that was seen before ('' for none), units of each segment
--            restock: retention (ms), quantity, the largest total, synced (1: what was done before
--              is written again, so that WAIT waits for it), operation
--            rebalance
--            resize: segments
--            purge: retention (ms), approximate number of records to look at
-- Returns  {1, now}: done. {0, now}: was done before. For init both have the generation.
--          {2, now}: too late. {3, now}: foreign data. {4, now}: no such stock.
--          {5, now, quantity}: the id was used for something else. {6, now}: too many.
--          {7, now}: the stock is spread. {8, now, records, more}: number of records forgotten,
--          and 1 if there are more to look at. {9, now}: another generation, or none
local now = server_time()
if now > tonumber(ARGV[1]) then return {2, now} end
local stock, ops, how = KEYS[1], KEYS[2], ARGV[2]
if how == 'purge' then
  local records, more = purge(stock, ops, ARGV[4], tonumber(ARGV[3]), math.floor(now / 1000))
  return {8, now, records, more and 1 or 0}
end
local n = try('HGET', stock, 'n')
if type(n) == 'table' then return {3, now} end
if how == 'init' then
  local born = n and (try('HGET', stock, 'b') or '0')
  if ARGV[3] ~= '' and ARGV[3] ~= born then return {9, now} end
  if n then return {0, now, tonumber(born)} end
  if call('HEXISTS', stock, 'layout') == 1 then return {7, now} end
  if call('EXISTS', stock) == 1 then return {3, now} end
  local fields, total = {}, 0
  for k = 4, #ARGV do
    total = total + ARGV[k]
    local at = #fields
    fields[at + 1], fields[at + 2], fields[at + 3], fields[at + 4] = 'a' .. (k - 4), ARGV[k], 'u' .. (k - 4), ARGV[k]
  end
  local count = #ARGV - 3
  local done = try('HSET', stock, 'n', count, 'm', count, 'e', 1, 'i', string.format('%.0f', total), 'r', 0,
    'b', string.format('%.0f', now), unpack(fields))
  if type(done) == 'table' then return done end
  return {1, now, now}
end
if not n then return {missing(stock), now} end
n = tonumber(n)

if how == 'restock' then
  local ms, operation = math.floor(now / 1000), ARGV[7]
  local text = try('HGET', ops, operation)
  if type(text) == 'table' then return {3, now} end
  local record, sold, bad = read(text, ms)
  if bad then return {3, now} end
  local quantity = tonumber(ARGV[4])
  if record then
    if record.state == 'R' and record.quantity == quantity then
      local done = ARGV[6] == '1' and try('HSET', ops, operation, text)
      return type(done) == 'table' and done or {0, now}
    end
    return {5, now, record.quantity}
  end
  if number(stock, 'i') + number(stock, 'r') + quantity > tonumber(ARGV[5]) then return {6, now} end
  local units, before = all(stock, n), all(stock, n)
  fill(units, quantity)
  -- The record comes second: a user that may write the counts may write them back.
  local done = put(stock, units, before)
  if type(done) == 'table' then return done end
  done = try('HSET', ops, operation, 'R 0 ' .. ARGV[4] .. ' ' .. string.format('%.0f', ms + ARGV[3]))
  if type(done) == 'table' then
    put(stock, before, units)
    return done
  end
  -- The replaced record may have sold something.
  if sold > 0 then call('HSET', stock, 'g', string.format('%.0f', number(stock, 'g') + sold)) end
  call('HSET', stock, 'r', string.format('%.0f', number(stock, 'r') + quantity))
  return {1, now}
end

local most = math.max(n, tonumber(ARGV[3] or n))
local units, before, total = all(stock, most), all(stock, most), 0
local count = how == 'resize' and tonumber(ARGV[3]) or n
if count == n and how == 'resize' then return {1, now} end
if how == 'rebalance' then
  for k = 1, n do
    total, units[k] = total + units[k], 0
  end
  fill(units, total)
else
  -- Puts the units of the retired segments into the others.
  local kept, gone = {}, {}
  for k = 1, count do kept[k] = units[k] end
  for k = count + 1, n do
    total = total + units[k]
    gone[k] = true
  end
  fill(kept, total)
  for k = 1, #units do units[k] = kept[k] or 0 end
end
local done = put(stock, units, before)
if type(done) == 'table' then return done end
if how == 'resize' then
  call('HSET', stock, 'n', count, 'm', math.max(count, number(stock, 'm')), 'e', number(stock, 'e') + 1)
end
return {1, now}
