-- Renews locks in the plain layout, each independently. Only lengthens. Follows plain_holds.lua.
--
-- KEYS     lock 1, lock 2, ...
-- ARGV     for each lock: lease (ms), owner, 0
-- Returns  for each lock 1 if it is held by its owner, with at least the lease left, else 0; or an
--          error.
--
-- What others see: a PEXPIRE if the value is the owner's.
local reply = {}
for i, lock in ipairs(KEYS) do
  local lease, mine = tonumber(ARGV[3 * i - 2]), holds(lock, ARGV[3 * i - 1])
  if mine == true then
    mine = try('PTTL', lock)
    if type(mine) == 'number' and mine >= 0 and mine < lease then mine = try('PEXPIRE', lock, lease) end
    if type(mine) == 'number' then mine = 1 end
  end
  reply[i] = mine or 0
end
return reply
