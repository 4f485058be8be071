-- Ends reservations that are over. Follows stock.lua.
--
-- KEYS     the stock's hash, its holds, its operations
-- ARGV     latest server time (us), retention (ms), maximum number
-- Returns  {2, now}: too late. {3, now}: foreign data. {4, now}: no such stock. {7, now}: it is
--          spread. Or {1, now, reservations that ended, ids without a reservation that left the
--          list, more (1: there are more)}
local now = server_time()
if now > tonumber(ARGV[1]) then return {2, now} end
local ms, stock = math.floor(now / 1000), KEYS[1]
local n = try('HGET', stock, 'n')
if type(n) == 'table' then return {3, now} end
if not n then return {missing(stock), now} end
local ended, left, more = expire(stock, KEYS[2], KEYS[3], tonumber(ARGV[3]), ms, ms + ARGV[2], tonumber(n))
if type(ended) == 'table' then return find(ended.err, 'WRONGTYPE') and {3, now} or ended end
return {1, now, ended, left, more and 1 or 0}
