-- Releases locks later: they stay taken, but at most for the given time from now. Never lengthens.
--
-- KEYS     lock 1, lock 2, ...
-- ARGV     time (ms), owner 1, channel 1, owner 2, channel 2, ...
-- Returns  for each lock 1 if its owner still held it, else 0; or an error.
--
-- What Redisson sees: a lock with a shorter TTL, and one message `0`: waiters look again and learn
-- the new TTL.
local reply = {}
for i = 1, #KEYS do
  local mine = redis.pcall('HEXISTS', KEYS[i], ARGV[2 * i])
  if mine == 1 then
    local left = redis.pcall('PTTL', KEYS[i])
    if type(left) == 'number' and (left == -1 or left > tonumber(ARGV[1])) then
      left = redis.pcall('PEXPIRE', KEYS[i], ARGV[1])
      if type(left) == 'number' then redis.pcall('PUBLISH', ARGV[2 * i + 1], '0') end
    end
    reply[i] = type(left) == 'number' and 1 or left
  elseif mine == 0 or string.find(mine.err, 'WRONGTYPE', 1, true) then
    reply[i] = 0
  else
    reply[i] = mine
  end
end
return reply
