-- Renews locks, each independently. Only lengthens.
--
-- KEYS     lock 1, lock 2, ..., then the counters of those that have a life
-- ARGV     for each lock: lease (ms), owner, life of its counter (see lengthen.lua) or 0
-- Returns  for each lock 1 if it is held by its owner, with at least the lease left, else 0; or an
--          error.
--
-- What Redisson sees: its own renewal (PEXPIRE if the owner's field exists).
local reply, counters = {}, #ARGV / 3
for i = 1, #ARGV / 3 do
  local lease, life = tonumber(ARGV[3 * i - 2]), tonumber(ARGV[3 * i])
  if life > 0 then counters = counters + 1 end
  local mine = redis.pcall('HEXISTS', KEYS[i], ARGV[3 * i - 1])
  if mine == 1 then
    local left = redis.pcall('PTTL', KEYS[i])
    if type(left) == 'number' and left < lease then left = redis.pcall('PEXPIRE', KEYS[i], lease) end
    if life > 0 then lengthen(KEYS[counters], lease, life) end
    reply[i] = type(left) == 'number' and 1 or left
  elseif mine == 0 or string.find(mine.err, 'WRONGTYPE', 1, true) then
    reply[i] = 0
  else
    reply[i] = mine
  end
end
return reply
