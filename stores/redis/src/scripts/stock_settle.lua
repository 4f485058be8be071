-- Confirms, cancels or gives back an operation. Follows stock.lua.
--
-- KEYS     the stock's hash, its holds, its operations
-- ARGV     latest server time (us), retention (ms), operation, how (confirm, cancel, give_back),
--          synced (1: what was done before is written again, so that WAIT waits for it)
-- Returns  {2, now}: too late. {3, now}: foreign data. {4, now}: no such stock. {7, now}: it is
--          spread. {0, now}: no such operation.
--          {1, now, state before ('' if it had no record), state now, quantity, reserved}
local now = server_time()
if now > tonumber(ARGV[1]) then return {2, now} end
local ms, stock, holds, ops, operation, how = math.floor(now / 1000), KEYS[1], KEYS[2], KEYS[3], ARGV[3], ARGV[4]
local text = try('HGET', ops, operation)
if type(text) == 'table' then return {3, now} end
local record, sold, bad = read(text, ms)
if bad then return {3, now} end
local n = try('HGET', stock, 'n')
if type(n) == 'table' then return {3, now} end
if not n then return {missing(stock), now} end
n = tonumber(n)

if not record then
  if how ~= 'cancel' then return {0, now} end
  -- The replaced record may have sold something.
  local counted = sold > 0 and try('HINCRBY', stock, 'g', string.format('%.0f', sold))
  if type(counted) == 'table' then return counted end
  local never = try('HSET', ops, operation, 'N 0 0 ' .. string.format('%.0f', ms + ARGV[2]))
  if type(never) == 'table' then
    if sold > 0 then call('HINCRBY', stock, 'g', string.format('%.0f', -sold)) end
    return never
  end
  return {1, now, '', 'C', 0, 0}
end
if record.state == 'R' then return {0, now} end

local before, after = record.state, record.state
if before == 'H' and how ~= 'give_back' then
  after = record.ends <= ms and 'E' or how == 'confirm' and 'S' or 'C'
elseif before == 'S' and how == 'give_back' then
  after = 'B'
end
if after ~= before then
  local failed = turn(stock, holds, ops, operation, record, after, ms + ARGV[2], n)
  if failed then return failed end
elseif ARGV[5] == '1' then
  local done = try('HSET', ops, operation, text)
  if type(done) == 'table' then return done end
end
local shown = {N = 'C'}
return {1, now, shown[before] or before, shown[after] or after, record.quantity, tonumber(record.reserved)}
