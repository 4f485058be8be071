-- Looks at a lock. Changes nothing.
--
-- KEYS     lock, counter
-- Returns  {ttl (ms), 'counter' or '', field 1, value 1, field 2, value 2, ...}; ttl is -2 when the lock is free and -1
--          when it has no TTL; {-3} when it is a hash of more than 10 000 fields, which no lock is.
local left = redis.call('PTTL', KEYS[1])
local counter = redis.pcall('GET', KEYS[2])
if type(counter) ~= 'string' then counter = '' end
local reply = {left, counter}
if left == -2 then return reply end
if redis.call('HLEN', KEYS[1]) > 10000 then return {-3} end
for i, value in ipairs(redis.call('HGETALL', KEYS[1])) do reply[i + 2] = value end
return reply
