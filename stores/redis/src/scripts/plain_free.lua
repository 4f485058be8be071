-- free(lock, owner, channel): the same as in free.lua for a lock in the plain layout. Shared by the
-- scripts that release. Not a script by itself.
--
-- Returns  what free() returns, see free.lua.
--
-- What others see: DEL of a key whose value is the owner's, and one message `0`.
local try = redis.pcall
local function free(lock, owner, channel)
  local value = try('GET', lock)
  if value ~= owner then
    -- No longer a string: it was overwritten, so the owner holds nothing.
    if type(value) ~= 'table' or string.find(value.err, 'WRONGTYPE', 1, true) then return -1 end
    return value
  end
  local done = try('DEL', lock)
  if done ~= 1 then return done end
  local told = try('PUBLISH', channel, '0')
  if type(told) == 'number' then return told end
  return -2
end

