-- Changes the number of permits, or only counts them. Follows semaphore.lua.
--
-- KEYS     n, {n}:timeout
-- ARGV     channel, how, number; how: try = set it unless it exists, set = that many in all, add =
--          that many more
-- Returns  {1, now, left, held}  done
--          {0, now, left, held}  it exists
--          {3, now, reason}      not a semaphore, see open()
--          {4, now, left}        `left` would exceed the range of Java's int
-- now is in us. Nothing was changed in the cases 0, 3 and 4, except for permits that had expired.
--
-- What Redisson sees: its own trySetPermits, setPermits, addPermits, availablePermits; but a TTL
-- stays.
local n, timeouts, now = KEYS[1], KEYS[2], server_time()
local it, bad = open(n, timeouts, now)
if not it then return bad end
local taken, number = call('ZCARD', timeouts), tonumber(ARGV[3])
if ARGV[2] == 'try' and it.exists then
  if it.changed then tell(ARGV[1], it.left) end
  return {0, now, it.left, taken}
end
local more = ARGV[2] == 'set' and number - taken - it.left or number
local left = it.left + more
if left > 2147483647 or left < -2147483648 then
  if it.changed then tell(ARGV[1], it.left) end
  return {4, now, left}
end
if more ~= 0 or ARGV[2] ~= 'add' then
  local done = try('INCRBY', n, string.format('%.0f', more))
  if type(done) ~= 'number' then return done end
end
if it.changed or more > 0 then tell(ARGV[1], left) end
return {1, now, left, taken}
