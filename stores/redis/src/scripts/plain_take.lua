-- take(now, items, lease, want, life, floor): the same as in grant.lua for locks in the plain
-- layout, which share one counter. Follows tokens.lua. Not a script by itself.
--
-- Returns  what take() returns, see grant.lua, with the same highest token for each item, and
--          {0, now, item, ttl in ms, 0}, where a ttl of -1 means that the lock has no TTL
--
-- A lock that its owner holds already was taken by SET before, or by an earlier copy of the
-- request. It is lengthened and gets new tokens. If it can't get any, it is freed.
--
-- What others see: lock = STRING, the owner, with a TTL; and see tokens.lua.
local function take(now, items, lease, want, life, floor)
  lease = tonumber(lease)
  local mine = {}
  for i, item in ipairs(items) do
    local value = call('GET', item[1])
    if value and value ~= item[3] then return {0, now, i, call('PTTL', item[1]), 0} end
    mine[i] = value
  end

  local function give_back(answer)
    for i, item in ipairs(items) do
      if mine[i] then redis.pcall('DEL', item[1]) end
    end
    return answer
  end

  local ok, refusal, tops = pcall(tokens, now, {items[1]}, lease, want, 0, floor)
  if not ok then
    if type(refusal) ~= 'table' then refusal = redis.error_reply(refusal) end
    return give_back(refusal)
  end
  if refusal then return give_back(refusal) end
  if type(tops) == 'table' then
    for i = 2, #items do tops[i + 2] = tops[3] end
  end

  for i, item in ipairs(items) do
    local done
    if not mine[i] then
      done = redis.pcall('SET', item[1], item[3], 'PX', lease)
      if not done.err then mine[i] = true end
    else
      done = redis.pcall('PTTL', item[1])
      if type(done) == 'number' and done >= 0 and done < lease then done = redis.pcall('PEXPIRE', item[1], lease) end
    end
    if type(done) == 'table' and done.err then return give_back(done) end
  end
  return tops
end

