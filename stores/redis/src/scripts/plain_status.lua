-- Looks at locks in the plain layout. Changes nothing.
--
-- KEYS     lock 1, counter, lock 2, counter, ...
-- Returns  for each lock {ttl (ms), subscribers of its channel, owner or ''}; ttl is -2 if the lock
--          is free and -1 if it has no TTL; or the error.
local replies = {}
for i = 1, #KEYS / 2 do
  local lock = KEYS[2 * i - 1]
  local tag = string.find(lock, '{', 1, true) and lock or '{' .. lock .. '}'
  local owner, left = redis.pcall('GET', lock), redis.pcall('PTTL', lock)
  if type(owner) == 'table' then
    replies[i] = owner
  elseif type(left) == 'table' then
    replies[i] = left
  else
    local told = redis.pcall('PUBSUB', 'NUMSUB', 'lock_plain_channel:' .. tag)
    replies[i] = {left, told[2] or 0, owner or ''}
  end
end
return replies
