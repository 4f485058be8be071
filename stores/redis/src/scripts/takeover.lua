-- Releases locks and, if that freed all of them and nobody else listens, takes them for new owners.
-- acquire.lua takes over single locks; this is for several, for tokens with a floor, and for a
-- cluster.
--
-- KEYS     lock 1, counter 1, lock 2, counter 2, ...
-- ARGV     number a of arguments before the grant's, 1 to respect listeners or 0 to ignore them,
--          then for each lock: owner, channel, own subscriptions to that channel (0 or 1; -1 if
--          others in the same process listen too, since they share its subscription);
--          from a + 1 on: the grant's arguments, see grant_all.lua
-- Returns  {freed 1, ..., freed n, grant}: what free() returns (free.lua) for each lock, then what
--          grant() returns, or 0 if it was not tried, or a text if it failed. The release stands
--          whatever happens to the grant.
--
-- What Redisson sees: a release with its message, and the lock held again by another owner.
local a, n = tonumber(ARGV[1]), #KEYS / 2
local reply, failed, clear = {}, nil, true
for i = 1, n do
  local freed = free(KEYS[2 * i - 1], ARGV[3 * i], ARGV[3 * i + 1])
  reply[i] = freed
  if type(freed) ~= 'number' then
    failed = freed
  elseif freed == -1 or (ARGV[2] == '1' and (freed == -2 or freed > tonumber(ARGV[3 * i + 2]))) then
    clear = false
  end
end
if failed then return failed end
if not clear then
  reply[n + 1] = 0
  return reply
end
local ok, got = pcall(grant, a)
if type(got) == 'table' and got.err then ok, got = false, got.err end
if ok then reply[n + 1] = got else reply[n + 1] = tostring(got) end
return reply
