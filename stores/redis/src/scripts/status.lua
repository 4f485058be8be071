-- Looks at locks of any kind. Changes nothing. Follows kinds.lua and rw_names.lua.
--
-- KEYS     lock 1, counter 1, lock 2, counter 2, ...
-- Returns  for each lock {ttl (ms), the counter's text or '', entries of the fair queue,
--          subscribers of the kind's channel, field 1, value 1, ...}; ttl is -2 if the lock is free
--          and -1 if it has no TTL; {-3} if it is a hash of more than 10 000 fields, which no lock
--          is; or the error. Readers whose own lease is over are left out if others live.

local function listeners(...)
  local all, answer = 0, try('PUBSUB', 'NUMSUB', ...)
  for i = 2, #answer, 2 do all = all + answer[i] end
  return all
end

local function living(lock, fields)
  local found, budget = {}, 10000
  for i = 1, #fields, 2 do
    local lives = fields[i] == 'mode' or find(fields[i], ':write$')
    for index = 1, lives and 0 or math.min(tonumber(fields[i + 1]) or 0, budget) do
      budget = budget - 1
      lives = lives or try('EXISTS', hold_of(lock, fields[i], index)) == 1
    end
    if lives then
      found[#found + 1] = fields[i]
      found[#found + 1] = fields[i + 1]
    end
  end
  return #found > 2 and found or fields
end

local replies = {}
for i = 1, #KEYS / 2 do
  local lock, left = KEYS[2 * i - 1], try('PTTL', KEYS[2 * i - 1])
  local counter = try('GET', KEYS[2 * i])
  if type(counter) ~= 'string' then counter = '' end
  local queued = try('LLEN', 'redisson_lock_queue:' .. tag(lock))
  local reply = {left, counter, type(queued) == 'number' and queued or 0, 0}
  local size = left == -2 and 0 or try('HLEN', lock)
  if type(left) == 'table' then
    reply = left
  elseif type(size) == 'table' then
    reply = size
  elseif size > 10000 then
    reply = {-3}
  elseif left == -2 then
    reply[4] = listeners('redisson_lock__channel:' .. tag(lock), rw_channel(lock))
  else
    local fields, mode = call('HGETALL', lock), call('HGET', lock, 'mode')
    reply[4] = listeners(mode and rw_channel(lock) or 'redisson_lock__channel:' .. tag(lock))
    if mode == 'read' or mode == 'write' then fields = living(lock, fields) end
    for _, value in ipairs(fields) do reply[#reply + 1] = value end
  end
  replies[i] = reply
end
return replies
