-- A stock as a whole. Follows spread.lua.
--
-- KEYS     the stock's hash
-- ARGV     latest server time (us), how, …
--            look
--            init: units of each segment          unless it exists
--            resize: segments, epoch              unless it is at another epoch, or not ready
--            ready: epoch                         what was begun with this epoch is done
-- Returns  {2, now}: too late. {3, now}: foreign data. {4, now}: no such stock. {5, now}: it is in
--          one slot. Or {1, now, changed, segments, segments ever, epoch, ready, units of new
--          segments}
local stock = KEYS[1]
local has = try('HMGET', stock, 'layout', 'c', 'm', 'e', 'st', 'u', 'n')
if has.err then return {3, now} end
if has[7] then return {5, now} end

local function answer(changed)
  return {1, now, changed, tonumber(has[2]), tonumber(has[3]), tonumber(has[4]), has[5] == 'ready' and 1 or 0, has[6] or ''}
end

if how == 'init' then
  if has[1] then return answer(0) end
  local units = {}
  for i = 3, #ARGV do units[i - 2] = ARGV[i] end
  has = {'spread', #units, #units, 1, 'making', table.concat(units, ' ')}
  local done = try('HSET', stock, 'layout', has[1], 'c', has[2], 'm', has[3], 'e', has[4], 'st', has[5], 'u', has[6])
  if type(done) == 'table' then return done end
  return answer(1)
end
if not has[1] then return {4, now} end
if has[1] ~= 'spread' then return {3, now} end
if how == 'resize' and has[5] == 'ready' and has[4] == ARGV[4] and has[2] ~= ARGV[3] then
  has[2], has[3], has[4], has[5] = ARGV[3], math.max(tonumber(has[3]), tonumber(ARGV[3])), tonumber(has[4]) + 1, 'resizing'
  local done = try('HSET', stock, 'c', has[2], 'm', has[3], 'e', has[4], 'st', has[5])
  if type(done) == 'table' then return done end
  return answer(1)
end
if how == 'ready' and has[5] ~= 'ready' and has[4] == ARGV[3] then
  has[5], has[6] = 'ready', nil
  local done = try('HSET', stock, 'st', 'ready')
  if type(done) == 'table' then return done end
  call('HDEL', stock, 'u')
  return answer(1)
end
return answer(0)
