-- free(lock, owner, channel): frees one lock if `owner` holds it. Shared by the scripts that
-- release. Not a script by itself.
--
-- Returns  -1 if the owner does not hold it, -2 if it was freed but nobody could be told (no right
--          to publish), else the number of subscribers that were told; or an error reply.
--
-- What Redisson sees: its own release at count 0: the field is deleted, and the key with its last
-- field, and one message `0` on redisson_lock__channel:{name}. All commands are allowed when memory
-- is full.
local try = redis.pcall
local function free(lock, owner, channel)
  local done = try('HDEL', lock, owner)
  if done == 0 then return -1 end
  if done ~= 1 then
    -- No longer a hash: it was overwritten, so the owner holds nothing.
    if string.find(done.err, 'WRONGTYPE', 1, true) then return -1 end
    return done
  end
  local told = try('PUBLISH', channel, '0')
  if type(told) == 'number' then return told end
  return -2
end
