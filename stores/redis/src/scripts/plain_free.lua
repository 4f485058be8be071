-- free(lock, owner, channel): the same as in free.lua for a lock in the plain layout. Follows
-- plain_holds.lua. Shared by the scripts that release. Not a script by itself.
--
-- Returns  what free() returns, see free.lua.
--
-- What others see: DEL of a key whose value is the owner's, and one message `0`.
local function free(lock, owner, channel)
  local mine = holds(lock, owner)
  if mine ~= true then return mine or -1 end
  local done = try('DEL', lock)
  if done ~= 1 then return done end
  local told = try('PUBLISH', channel, '0')
  if type(told) == 'number' then return told end
  return -2
end

