-- Releases locks in the plain layout later: they stay taken, but at most for the given time from
-- now. Never lengthens.
--
-- KEYS     lock 1, lock 2, ...
-- ARGV     time (ms), owner 1, channel 1, owner 2, channel 2, ...
-- Returns  for each lock 1 if its owner still held it, else 0; or an error.
--
-- What others see: a PEXPIRE, and one message `0`.
local reply = {}
for i, lock in ipairs(KEYS) do
  local value = redis.pcall('GET', lock)
  if value == ARGV[2 * i] then
    local left = redis.pcall('PTTL', lock)
    if type(left) == 'number' and (left == -1 or left > tonumber(ARGV[1])) then
      left = redis.pcall('PEXPIRE', lock, ARGV[1])
      if type(left) == 'number' then redis.pcall('PUBLISH', ARGV[2 * i + 1], '0') end
    end
    reply[i] = type(left) == 'number' and 1 or left
  elseif type(value) ~= 'table' or string.find(value.err, 'WRONGTYPE', 1, true) then
    reply[i] = 0
  else
    reply[i] = value
  end
end
return reply
