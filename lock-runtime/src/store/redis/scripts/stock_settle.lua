-- Confirms, cancels or gives back an operation. Stands behind stock.lua.
--
-- KEYS     the stock's hash, its holds, its operations
-- ARGV     latest server time (us), retention (ms), operation, how (confirm, cancel, give_back, or expire: only what is over),
--          synced (1: what was done before is written again, so that WAIT waits for it)
-- Returns  {2, now}: too late. {3, now}: somebody's data. {4, now}: no such stock. {0, now}: no such operation.
--          {1, now, state before ('' when it had no record), state now, quantity, reserved}
local now = server_time()
if now > tonumber(ARGV[1]) then return {2, now} end
local ms, stock, holds, ops, operation, how = math.floor(now / 1000), KEYS[1], KEYS[2], KEYS[3], ARGV[3], ARGV[4]
local text = try('HGET', ops, operation)
if type(text) == 'table' then return {3, now} end
local record, bad = read(text, ms)
if bad then return {3, now} end
local n = try('HGET', stock, 'n')
if type(n) == 'table' then return {3, now} end
if not n then return {4, now} end
n = tonumber(n)

if not record then
  if how ~= 'cancel' then return {0, now} end
  local never = try('HSET', ops, operation, 'N 0 0 ' .. string.format('%.0f', ms + ARGV[2]))
  if type(never) == 'table' then return never end
  return {1, now, '', 'C', 0, 0}
end
if record.state == 'R' then return {0, now} end

local before, after = record.state, record.state
if before == 'H' and how ~= 'give_back' then
  local ended = {confirm = 'S', cancel = 'C', expire = 'H'}
  after = record.ends <= ms and 'E' or ended[how]
elseif before == 'S' and how == 'give_back' then
  after = 'B'
end
if after ~= before then
  record.state, record.ends = after, ms + ARGV[2]
  -- Whatever can fail comes first, and the record comes second: who may move the units may move them back. No operation
  -- has an empty name, so nothing goes. A script that has begun with a command that needs no memory may go on when the
  -- server is full, and what comes back needs none.
  local may = try('ZREM', holds, '')
  if type(may) == 'table' then return may end
  local from, to = before == 'H' and 'h' or 's', after == 'S' and 's' or 'a'
  move(stock, record, from, to, n)
  local done = try('HSET', ops, operation, write(record))
  if type(done) == 'table' then
    move(stock, record, to, from, n)
    return done
  end
  if before == 'H' then call('ZREM', holds, operation) end
elseif ARGV[5] == '1' then
  local done = try('HSET', ops, operation, text)
  if type(done) == 'table' then return done end
end
local shown = {N = 'C'}
return {1, now, shown[before] or before, shown[after] or after, record.quantity, tonumber(record.reserved)}
