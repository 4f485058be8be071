-- Frees a lock in the plain layout, whoever holds it, and wakes its waiters. Changes nothing that
-- is not a string.
--
-- KEYS     lock
-- Returns  1 if it was held, 0 if it was free.
--
-- What others see: DEL, and one message `0`.
local lock = KEYS[1]
if not redis.call('GET', lock) then return 0 end
redis.call('DEL', lock)
local tag = string.find(lock, '{', 1, true) and lock or '{' .. lock .. '}'
redis.pcall('PUBLISH', 'lock_plain_channel:' .. tag, '0')
return 1
