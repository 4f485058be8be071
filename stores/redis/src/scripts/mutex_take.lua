-- How mutexes beside items of other kinds are acquired; see kinds.lua. For mutexes alone see
-- grant.lua.
--
-- What Redisson sees: HASH {owner: 1} with a TTL.

-- Whether a hash is foreign data: it has a field that no lock has.
local function odd(lock)
  for _, field in ipairs(call('HRANDFIELD', lock, 8)) do
    if field ~= 'mode' and not find(field, '^.+:%d+$') and not find(field, '^.+:%d+:write$') then return true end
  end
  return false
end

function kinds.m.look(item)
  local lock = item[1]
  local left = call('PTTL', lock)
  item.left = left
  if left == -2 then return end
  if left == -1 then return nil, 'no-ttl' end
  local found = call('HMGET', lock, 'mode', item[3])
  if found[2] and not found[1] then return end
  if odd(lock) then return nil, 'field' end
  return left
end

function kinds.m.grant(item, lease)
  local done = try('HSET', item[1], item[3], '1')
  if type(done) == 'number' and item.left < lease then done = try('PEXPIRE', item[1], lease) end
  if type(done) ~= 'number' then return done end
end

function kinds.m.undo(item)
  if item.left == -2 then try('HDEL', item[1], item[3]) end
end
