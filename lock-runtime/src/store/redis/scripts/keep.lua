-- Renews locks, each on its own. Only lengthens.
--
-- KEYS     lock 1, lock 2, ...
-- ARGV     lease 1 (ms), owner 1, lease 2, owner 2, ...
-- Returns  for each lock 1 when it is held by its owner, with at least the lease left, else 0; or an
--          error.
--
-- What Redisson sees: its own renewal (PEXPIRE if the owner's field is there).
local reply = {}
for i = 1, #KEYS do
  local mine = redis.pcall('HEXISTS', KEYS[i], ARGV[2 * i])
  if mine == 1 then
    local left = redis.pcall('PTTL', KEYS[i])
    if type(left) == 'number' and left < tonumber(ARGV[2 * i - 1]) then
      left = redis.pcall('PEXPIRE', KEYS[i], ARGV[2 * i - 1])
    end
    reply[i] = type(left) == 'number' and 1 or left
  elseif mine == 0 or string.find(mine.err, 'WRONGTYPE', 1, true) then
    reply[i] = 0
  else
    reply[i] = mine
  end
end
return reply
