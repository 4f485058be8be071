-- What a stock has, and which reservations are over. Stands behind stock.lua.
--
-- KEYS     the stock's hash, its holds
-- ARGV     how many reservations at most
-- Returns  {3, now}: somebody's data. {4, now}: no such stock. Or
--          {1, now, n, m, epoch, initial, restocked, {available, held, sold of each of the m segments}, {operation, …}}
local now, stock = server_time(), KEYS[1]
local head = try('HMGET', stock, 'n', 'm', 'e', 'i', 'r')
if head.err then return {3, now} end
if not head[1] then return {4, now} end
local fields, units = {}, {}
for k = 0, head[2] - 1 do
  fields[#fields + 1], fields[#fields + 2], fields[#fields + 3] = 'a' .. k, 'h' .. k, 'u' .. k
end
for i, text in ipairs(call('HMGET', stock, unpack(fields))) do
  units[i] = tonumber(text or 0)
  if i % 3 == 0 then units[i] = units[i] - units[i - 1] - units[i - 2] end
end
local over = {}
if tonumber(ARGV[1]) > 0 then
  over = try('ZRANGEBYSCORE', KEYS[2], '-inf', math.floor(now / 1000), 'LIMIT', 0, ARGV[1])
  if over.err then return {3, now} end
end
return {1, now, tonumber(head[1]), tonumber(head[2]), tonumber(head[3]), tonumber(head[4]), tonumber(head[5]), units, over}
