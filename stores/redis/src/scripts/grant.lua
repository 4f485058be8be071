-- take(now, items, lease, want, life, floor): takes every lock of `items` or none, whatever the
-- state of the locks and their counters. Follows tokens.lua. Shared by the scripts that acquire.
-- Not a script by itself.
--
-- now      server time (us)
-- items    {{lock, counter, owner}, ...}; the channel has the counter's name with another beginning
-- lease    ms; for want, life and floor see tokens.lua. All are text, as they came
-- Returns
--   top                              granted: every counter is at `top`, and the server time is
--                                    top - tokens wanted
--   {1, now, 'top 1', 'top 2', ...}  granted: each item with its own highest token, as text (may
--                                    exceed 2^53)
--   {0, now, item, ttl in ms, n}     busy: `item` is held by another owner; n subscribers wait for
--                                    its release, 0 if the user has no right to ask
--   {3, now, item, reason}           `item` is not a lock; the reasons are listed in reply.rs
--   {4, now, item}                   the counter of `item` is not an integer
-- All times are in us except the ttl. Nothing was changed in the cases 0, 3 and 4.
--
-- What Redisson sees: lock = HASH {owner: 1} with a TTL, and see tokens.lua.
--
-- Scripts have no roll-back, so everything that can fail comes first. The locks are looked at, the
-- counters are read and then moved (full memory, read-only and overflow show here), and only then
-- are the locks written.

local function take(now, items, lease, want, life, floor)
  local lefts = {}
  lease = tonumber(lease)

  for i, item in ipairs(items) do
    local left = call('PTTL', item[1])
    if left == -1 then return {3, now, i, 'no-ttl'} end
    if left >= 0 and call('HEXISTS', item[1], item[3]) == 0 then
      for _, field in ipairs(call('HRANDFIELD', item[1], 8)) do
        if field ~= 'mode' and not string.find(field, '^.+:%d+$') and not string.find(field, '^.+:%d+:write$') then
          return {3, now, i, 'field'}
        end
      end
      local told = redis.pcall('PUBSUB', 'NUMSUB', 'redisson_lock__channel:' .. string.sub(item[2], 21))
      return {0, now, i, left, told[2] or 0}
    end
    lefts[i] = left
  end

  local refusal, tops = tokens(now, items, lease, want, life, floor)
  if refusal then return refusal end

  for i, item in ipairs(items) do
    local done = redis.pcall('HSET', item[1], item[3], 1)
    if type(done) == 'number' and lefts[i] < lease then done = redis.pcall('PEXPIRE', item[1], lease) end
    if type(done) ~= 'number' then
      -- Only reached if the user lacks a right. A lock must never be left without a TTL.
      for j = 1, i do
        if lefts[j] == -2 then redis.pcall('HDEL', items[j][1], items[j][3]) end
      end
      return done
    end
  end
  return tops
end
