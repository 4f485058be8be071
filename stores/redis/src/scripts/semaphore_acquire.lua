-- Takes permits, all or none. Follows semaphore.lua.
--
-- KEYS     n, {n}:timeout
-- ARGV     latest server time (us), lease (ms), channel, id 1, id 2, ...
-- Returns  {1, now}              granted; ids that are held already are the same request, sent
--                                again: their lease is only lengthened
--          {0, now, left, wait}  too few left; wait: ms until the first held permit comes back, -1
--                                if none does
--          {2, now}              this arrived after the latest server time
--          {3, now, reason}      not a semaphore, see open()
-- Times are in us, except lease and wait. Nothing was changed in the cases 0, 2 and 3, except for
-- permits that had expired.
local n, timeouts, now = KEYS[1], KEYS[2], server_time()
if now > tonumber(ARGV[1]) then return {2, now} end
local it, bad = open(n, timeouts, now)
if not it then return bad end

local fresh, entries, ends = {}, {}, string.format('%.0f', it.ms + ARGV[2])
for i = 4, #ARGV do
  if not call('ZSCORE', timeouts, ARGV[i]) then fresh[#fresh + 1] = ARGV[i] end
  entries[#entries + 1] = ends
  entries[#entries + 1] = ARGV[i]
end
if #fresh > 0 and it.left < #fresh then
  if it.changed then tell(ARGV[3], it.left) end
  local first = call('ZRANGE', timeouts, 0, 0, 'WITHSCORES')
  local score = tonumber(first[2] or NEVER)
  return {0, now, it.left, score >= NEVER and -1 or math.max(1, math.ceil(score - it.ms))}
end

-- Everything that can fail for lack of memory or rights comes first.
local done = try('ZADD', timeouts, 'GT', unpack(entries))
if type(done) ~= 'number' then return done end
if #fresh > 0 then
  local left = try('INCRBY', n, -#fresh)
  if type(left) ~= 'number' then
    try('ZREM', timeouts, unpack(fresh))
    return left
  end
  it.left = left
end
-- A semaphore with a TTL (Redisson's expire) ends together with its permits.
local life = call('PTTL', n)
if life > 0 then try('PEXPIRE', timeouts, life) end
if it.changed then tell(ARGV[3], it.left) end
return {1, now}
