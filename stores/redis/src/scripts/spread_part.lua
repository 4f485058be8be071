-- A segment itself, and transfers between segments. Follows spread.lua.
--
-- KEYS     the segment; for over and forget also its puts and their times
-- ARGV     latest server time (us), how, …
--            look
--            make: epoch, units                   unless it exists; then it becomes active
--            retire: epoch                        both only if the epoch is newer than all before
--            send: segment, units                 at most what is available; a transfer under way
--                                                 goes first
--            receive: segment, number, units
--            clear: segment, number               the transfer has arrived
--            over: until (ms before now), most    operations that were last here before then
--            forget: operation, entry, …          those that are unchanged
-- Returns  {2, now}: too late. {3, now}: foreign data. {4, now}: no such segment. {0, now}: nothing
--          to do. Or {1, now, …}:
--            look: all fields and values. send: number, units. over: operation, entry, …
local part = KEYS[1]
local state = try('HGET', part, 'st')
if type(state) == 'table' then return {3, now} end
local function number(field) return tonumber(call('HGET', part, field) or 0) end

if how == 'make' or how == 'retire' then
  if state and tonumber(ARGV[3]) <= number('e') then return {0, now} end
  if not state and how == 'retire' then return {0, now} end
  local done
  if state then
    done = try('HSET', part, 'st', how == 'retire' and 'D' or 'A', 'e', ARGV[3])
  else
    done = try('HSET', part, 'st', 'A', 'e', ARGV[3], 'a', ARGV[4], 'i', ARGV[4])
  end
  if type(done) == 'table' then return done end
  return {1, now}
end
if not state then return {4, now} end
if how == 'look' then return {1, now, call('HGETALL', part)} end
if how == 'send' then
  local under_way = call('HGET', part, 'o' .. ARGV[3])
  if not under_way then
    local units = math.min(number('a'), tonumber(ARGV[4]))
    if units <= 0 then return {0, now} end
    -- At least the present time, so that a server that has forgotten some does not reuse their
    -- numbers.
    local nth = math.max(number('x' .. ARGV[3]) + 1, now)
    under_way = whole(nth) .. ' ' .. whole(units)
    local done = try('HSET', part, 'o' .. ARGV[3], under_way, 'x' .. ARGV[3], whole(nth),
      'a', whole(number('a') - units), 'y', whole(number('y') + 1), 'c', whole(number('c') + 1))
    if type(done) == 'table' then return done end
  end
  local nth, units = match(under_way, '^(%d+) (%d+)$')
  if not nth then return {3, now} end
  return {1, now, tonumber(nth), tonumber(units)}
end
if how == 'receive' then
  local last = number('l' .. ARGV[3])
  if tonumber(ARGV[4]) <= last then return {0, now} end
  local done = try('HSET', part, 'l' .. ARGV[3], ARGV[4],
    'a', whole(number('a') + ARGV[5]), 'y', whole(number('y') + 1), 'c', whole(number('c') + 1))
  if type(done) == 'table' then return done end
  return {1, now}
end
if how == 'clear' then
  local under_way = call('HGET', part, 'o' .. ARGV[3])
  if not under_way or match(under_way, '^(%d+)') ~= ARGV[4] then return {0, now} end
  call('HDEL', part, 'o' .. ARGV[3])
  return {1, now}
end
local puts, times = KEYS[2], KEYS[3]
if how == 'over' then
  local over = try('ZRANGEBYSCORE', times, '-inf', whole(ms - ARGV[3]), 'LIMIT', 0, ARGV[4])
  if over.err then return {3, now} end
  local answer = {1, now}
  for _, operation in ipairs(over) do
    answer[#answer + 1], answer[#answer + 2] = operation, call('HGET', puts, operation) or ''
  end
  return answer
end
for i = 3, #ARGV - 1, 2 do
  local entry = call('HGET', puts, ARGV[i])
  if (entry or '') == ARGV[i + 1] then
    if entry then call('HDEL', puts, ARGV[i]) end
    call('ZREM', times, ARGV[i])
  end
end
return {1, now}
