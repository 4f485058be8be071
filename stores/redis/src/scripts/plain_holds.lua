-- holds(lock, owner): whether `owner` holds a lock in the plain layout. Shared by the scripts that
-- release and renew. Not a script by itself.
--
-- Returns  true, false, or an error reply. Data of another type is held by nobody.
local try = redis.pcall
local function holds(lock, owner)
  local value = try('GET', lock)
  if type(value) == 'table' and not string.find(value.err, 'WRONGTYPE', 1, true) then return value end
  return value == owner
end

