-- Releases locks in the plain layout later: they stay taken, but at most for the given time from
-- now. Never lengthens. Follows plain_holds.lua.
--
-- KEYS     lock 1, lock 2, ...
-- ARGV     time (ms), owner 1, channel 1, owner 2, channel 2, ...
-- Returns  for each lock 1 if its owner still held it, else 0; or an error.
--
-- What others see: a PEXPIRE, and one message `0`.
local reply = {}
for i, lock in ipairs(KEYS) do
  local mine = holds(lock, ARGV[2 * i])
  if mine == true then
    mine = try('PTTL', lock)
    if type(mine) == 'number' and (mine == -1 or mine > tonumber(ARGV[1])) then
      mine = try('PEXPIRE', lock, ARGV[1])
      if type(mine) == 'number' then try('PUBLISH', ARGV[2 * i + 1], '0') end
    end
    if type(mine) == 'number' then mine = 1 end
  end
  reply[i] = mine or 0
end
return reply
