-- Takes units of one stock for operations that travel together, each on its own.
--
-- KEYS     the stock's hash, its holds, the record of each operation
-- ARGV     latest server time (us), retention (ms), hold (ms; -1: sold), first segment (any number), token ('': any segment; else that
--          segment and no other, shown this token, 0: none), synced (1: what was done before is written again, so that
--          WAIT waits for it), then the quantity of each operation
-- Returns  {2, now}: too late, nothing was done. {3, now}: somebody's data. {4, now}: no such stock. Or {1, now, segments, answer, …}:
--          k: all taken now, of segment k. {'D', repeated, state, remaining ms, k, units, …}, {'O', state},
--          {'X', quantity, reserved}, {'L', available}, {'F'}: an older token than was seen, {'?'}: somebody's data,
--          or the error
--
-- This part knows the usual case only: the first segment has enough, and the operation has no record. It has no functions,
-- since making one costs as much as a command. stock.lua and stock_take_rest.lua stand behind it for everything else.
--
-- Whatever can fail comes first: who may write the counts, once, may do so again. So they are written for all operations that
-- there is enough for, before the records are, and put right at the end if some of those were there or could not be written.
local try, keys, args = redis.pcall, KEYS, ARGV
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
if now > tonumber(args[1]) then return {2, now} end
local stock, holds, count = keys[1], keys[2], #keys - 2
local retention, hold, k, only, token = args[2], tonumber(args[3]), tonumber(args[4]), args[5] ~= '', tonumber(args[5])
local fence, column = only and token > 0, hold < 0 and 's' or 'h'
-- As text as long as it will do: to make one of a number takes longer than most of this.
local place = args[4]
local a, to, f = 'a' .. place, column .. place, fence and 'f' .. place
local at = fence and try('HMGET', stock, 'n', a, to, f) or not fence and try('HMGET', stock, 'n', a, to)
if at.err then return at end
if not at[1] then return {4, now} end
local n = tonumber(at[1])
if not n then return {3, now} end
if k >= n and not only then
  k = k % n
  place = string.format('%d', k)
  a, to = 'a' .. place, column .. place
  at = redis.call('HMGET', stock, 'n', a, to)
end
local has, moved = tonumber(at[2] or 0), tonumber(at[3] or 0)
local stale = k >= n or fence and token < tonumber(at[4] or 0)

-- So many operations are done in the usual way; the others are not.
local usual, units = 0, 0
while usual < count and not stale do
  local quantity = tonumber(args[usual + 7])
  if units + quantity > has then break end
  usual, units = usual + 1, units + quantity
end
local ends, held, failed = nil, nil, nil
if usual > 0 then
  if hold >= 0 then
    -- Its last millisecond too.
    ends, held = string.format('%d', math.ceil(now / 1000) + hold), {}
    failed = try('ZADD', holds, 'XX', 0, '')
  end
  if type(failed) ~= 'table' then
    local left, there = string.format('%d', has - units), string.format('%d', moved + units)
    failed = fence and try('HSET', stock, a, left, to, there, f, args[5]) or not fence and try('HSET', stock, a, left, to, there)
  end
  -- Nothing is written then. Each is looked at by itself: one that was done before is told so.
  if type(failed) == 'table' then usual, units, held = 0, 0, nil end
end

local answers, rest, undone, last, text = {1, now, n}, nil, 0, nil, nil
for i = 1, count do
  local wanted, done = args[i + 6], nil
  if i <= usual then
    if ends then
      done = try('SET', keys[i + 2], 'H 1 ' .. wanted .. ' ' .. ends .. ' ' .. place .. ':' .. wanted, 'NX')
    else
      if wanted ~= last then text, last = 'S 0 ' .. wanted .. ' 0 ' .. place .. ':' .. wanted, wanted end
      done = try('SET', keys[i + 2], text, 'NX', 'PX', retention)
    end
    if done and done.ok then
      done = k
      if ends then held[#held + 1], held[#held + 2] = ends, string.sub(keys[i + 2], #stock + 5) end
    else
      undone = undone + wanted
    end
  end
  if not done then
    rest = rest or {}
    rest[#rest + 1] = i
  end
  answers[i + 3] = done
end
if undone > 0 then
  redis.call('HSET', stock, a, string.format('%d', has - units + undone), to, string.format('%d', moved + units - undone))
end
if held and held[1] then redis.call('ZADD', holds, unpack(held)) end
if not rest then return answers end

