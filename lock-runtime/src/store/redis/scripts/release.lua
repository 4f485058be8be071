-- Releases locks, each on its own, and wakes whoever waits for them.
--
-- KEYS     lock 1, lock 2, ...
-- ARGV     owner 1, channel 1, owner 2, channel 2, ...
-- Returns  for each lock what free() says, see free.lua, which stands in front of this; for a single lock the bare
--          number, for several an array. An error reply means that at least one was refused; the others are freed.
if #KEYS == 1 then return free(KEYS[1], ARGV[1], ARGV[2]) end
local freed, failed = {}, nil
for i = 1, #KEYS do
  freed[i] = free(KEYS[i], ARGV[2 * i - 1], ARGV[2 * i])
  if type(freed[i]) ~= 'number' then failed = freed[i] end
end
return failed or freed
