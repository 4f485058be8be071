-- Frees a lock whoever holds it, and wakes whoever waits for it. Leaves everything alone that is not a lock.
--
-- KEYS     lock
-- ARGV     channel
-- Returns  1 when it was held, 0 when it was free, or the reason why it is not a lock (listed in reply.rs).
--
-- What Redisson sees: its own force release: DEL and one message `0`.
local left = redis.call('PTTL', KEYS[1])
if left == -2 then return 0 end
if left == -1 then return 'no-ttl' end
if redis.call('HLEN', KEYS[1]) > 10000 then return 'field' end
for _, field in ipairs(redis.call('HKEYS', KEYS[1])) do
  if field ~= 'mode' and not string.find(field, '^.+:%d+$') and not string.find(field, '^.+:%d+:write$') then
    return 'field'
  end
end
redis.call('DEL', KEYS[1])
redis.pcall('PUBLISH', ARGV[1], '0')
return 1
