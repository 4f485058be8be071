-- Gives permits back; also undoes an acquire whose outcome is unknown. Follows semaphore.lua.
--
-- KEYS     n, {n}:timeout
-- ARGV     channel, id 1, id 2, ...
-- Returns  {1, now, 1 or 0 for each id: whether it was held}; {3, now, reason} if the key is not a
--          semaphore. now in us.
--
-- What Redisson sees: its own release, and one message with the number of permits left.
local n, timeouts, now = KEYS[1], KEYS[2], server_time()
local it, bad = open(n, timeouts, now)
if not it then return bad end
local ids, flags = held(timeouts, 2, #ARGV)
if #ids > 0 then
  local left = give_back(n, timeouts, ids)
  if type(left) ~= 'number' then return left end
  it.left, it.changed = left, true
end
if it.changed then tell(ARGV[1], it.left) end
return {1, now, unpack(flags)}
