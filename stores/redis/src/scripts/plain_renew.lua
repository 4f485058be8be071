-- Renews locks in the plain layout, each independently. Only lengthens.
--
-- KEYS     lock 1, lock 2, ...
-- ARGV     for each lock: lease (ms), owner, 0
-- Returns  for each lock 1 if it is held by its owner, with at least the lease left, else 0; or an
--          error.
--
-- What others see: a PEXPIRE if the value is the owner's.
local reply = {}
for i, lock in ipairs(KEYS) do
  local lease, value = tonumber(ARGV[3 * i - 2]), redis.pcall('GET', lock)
  if value == ARGV[3 * i - 1] then
    local left = redis.pcall('PTTL', lock)
    if type(left) == 'number' and left < lease then left = redis.pcall('PEXPIRE', lock, lease) end
    reply[i] = type(left) == 'number' and 1 or left
  elseif type(value) ~= 'table' or string.find(value.err, 'WRONGTYPE', 1, true) then
    reply[i] = 0
  else
    reply[i] = value
  end
end
return reply
