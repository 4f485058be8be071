-- What the scripts of stocks in one slot share. Not a script by itself.
--
--   HASH lock_stock:{n}        n   segments            m   segments that ever existed
--                              e   epoch               i   initial
--                              r   restocked           ak  available in segment k
--                              hk  held in segment k   fk  largest token shown there
--                              uk  all units that segment k accounts for: those that are neither
--                                  available nor held are sold
--                              g   units sold by operations whose records are forgotten
--                              b   when the stock was made (us): its generation; g and b are 0 if
--                                  missing
--                              w   state of a pass through all records: "<cursor> <ms> <ms>": where
--                                  it goes on (0: it is done), when the first of those seen is
--                                  over, and when the pass began
--   ZSET lock_stock_holds:{n}  reserved operations, by the end of their reservation in ms
--   HASH lock_stock_ops:{n}    operation -> "<state> <reserved> <quantity> <ms> <k>:<units> …";
--                              the time is the end of a reservation, or when a settled record is
--                              forgotten
--   states                     S sold, H held, C cancelled, E expired, B given back, N cancelled
--                              before it came, R restocked
local try, call, find, match, gmatch = redis.pcall, redis.call, string.find, string.match, string.gmatch

local function server_time()
  local time = call('TIME')
  return time[1] * 1000000 + time[2]
end

-- Returns the code for a stock without segments here: 4 if there is none, 7 if it is spread.
local function missing(stock)
  return try('HEXISTS', stock, 'layout') == 1 and 7 or 4
end

-- Reads the record of an operation: {state, reserved, quantity, ends, parts}. Returns nil and 0 if
-- there is none, nil and its sold units if its time is over, or nil, nil and the error.
local function read(text, ms)
  if not text then return nil, 0 end
  local state, reserved, quantity, ends, parts = match(text, '^([SHCEBNR]) ([01]) (%d+) (%d+)(.*)$')
  if not state then return nil, nil, 'record' end
  ends = tonumber(ends)
  if state ~= 'H' and ends <= ms then return nil, state == 'S' and tonumber(quantity) or 0 end
  return {state = state, reserved = reserved, quantity = tonumber(quantity), ends = ends, parts = parts}
end

local function write(record)
  return string.format('%s %s %.0f %.0f%s', record.state, record.reserved, record.quantity, record.ends, record.parts)
end

-- Returns a number of the stock's hash; a missing one is 0.
local function number(stock, field)
  return tonumber(call('HGET', stock, field) or 0)
end

-- Moves the units of an operation from one column to another: a available, h held, s sold. Units of
-- a retired segment become available in an active one, and are accounted for there. Returns
-- nothing, or an error; then nothing has changed.
local function move(stock, record, from, to, n)
  local fields, by = {}, {}
  local function change(field, units) fields[#fields + 1], by[#by + 1] = field, units end
  for k, units in gmatch(record.parts, ' (%d+):(%d+)') do
    local home = string.format('%d', tonumber(k) % n)
    local less = '-' .. units
    if from ~= 's' then change(from .. (from == 'a' and home or k), less) end
    if to ~= 's' then change(to .. (to == 'a' and home or k), units) end
    if home ~= k then
      local at = to == 'a' and home or from == 'a' and k
      if at then
        change('u' .. (at == home and k or home), less)
        change('u' .. at, units)
      end
    end
  end
  for at, field in ipairs(fields) do
    local done = try('HINCRBY', stock, field, by[at])
    if type(done) == 'table' then
      for back = at - 1, 1, -1 do
        local units = by[back]
        call('HINCRBY', stock, fields[back], units:sub(1, 1) == '-' and units:sub(2) or '-' .. units)
      end
      return done
    end
  end
end

-- Writes a record in its new state, and moves its units. Returns nothing, or an error; then
-- nothing has changed.
local function turn(stock, holds, ops, operation, record, after, ends, n)
  local from, to = record.state == 'H' and 'h' or 's', after == 'S' and 's' or 'a'
  -- Everything that can fail comes first, and the record second: a user that may move the units may
  -- move them back. No operation has an empty name, so nothing is removed. When memory is full, a
  -- script whose first command needs none may go on, and units that come back need none.
  local may = try('ZREM', holds, '')
  if type(may) == 'table' then return may end
  local failed = move(stock, record, from, to, n)
  if failed then return failed end
  record.state, record.ends = after, ends
  local done = try('HSET', ops, operation, write(record))
  if type(done) == 'table' then
    move(stock, record, to, from, n)
    return done
  end
  if from == 'h' then call('ZREM', holds, operation) end
end

-- Ends reservations that are over, the earliest first, for at most `most` ids. An id without a
-- reservation leaves the list; its units stay held, since only the record knew their segments. A
-- record that cannot be read, or whose counts are corrupt, is postponed by the retention so that it
-- does not block others. Returns how many reservations ended, how many ids left the list, and
-- whether there are more; or an error.
local function expire(stock, holds, ops, most, ms, ends, n)
  local over = try('ZRANGEBYSCORE', holds, '-inf', ms, 'LIMIT', 0, most + 1)
  if over.err then return over end
  local more = #over > most
  if more then over[#over] = nil end
  if #over == 0 then return 0, 0, false end
  local texts, ended, left = try('HMGET', ops, unpack(over)), 0, 0
  if texts.err then return texts end
  for at, operation in ipairs(over) do
    local record, _, bad = read(texts[at], ms)
    local is_held = record and record.state == 'H'
    if is_held then
      bad = turn(stock, holds, ops, operation, record, 'E', ends, n)
      if bad and not find(bad.err, 'integer') and not find(bad.err, 'overflow') then return bad end
    end
    if is_held and not bad then
      ended = ended + 1
    else
      local done
      if bad then done = try('ZADD', holds, 'XX', ends, operation) else done = try('ZREM', holds, operation) end
      if type(done) == 'table' then return done end
      left = left + 1
    end
  end
  return ended, left, more
end

-- Looks at about `most` records and forgets those that are over, unless none can be. Returns how
-- many were forgotten, and whether there are more to look at.
local function purge(stock, ops, most, retention, ms)
  local w = try('HGET', stock, 'w')
  local cursor, first, begun = match(type(w) == 'string' and w or '0 0 0', '^(%d+) (%d+) (%d+)$')
  if not cursor or type(w) == 'table' then return 0, false end
  first = tonumber(first)
  if cursor == '0' then
    -- Records made since the pass began are not over before its time plus the caller's retention.
    -- The check also limits how often passes begin where some records are always over. The clock
    -- may have been ahead.
    local since = ms - begun
    if since >= 0 and (since < retention / 16 or ms < first and since < retention) then return 0, false end
    first, begun = 9007199254740991, string.format('%d', ms)
  end
  -- A script whose first command needs no memory may go on when the server is full. No operation
  -- has an empty name.
  local may = try('HDEL', ops, '')
  local found = type(may) == 'number' and try('HSCAN', ops, cursor, 'COUNT', most)
  if not found or found.err then return 0, false end
  local over, count, sold = {}, 0, 0
  for i = 2, #found[2], 2 do
    local state, quantity, ends = match(found[2][i], '^([SCEBNR]) [01] (%d+) (%d+)')
    ends = state and tonumber(ends)
    if ends and ends <= ms then
      over[#over + 1] = found[2][i - 1]
      if state == 'S' then sold = sold + quantity end
    elseif ends and ends < first then
      first = ends
    end
  end
  local is_there = try('HGET', stock, 'n')
  if is_there and sold > 0 and type(try('HINCRBY', stock, 'g', string.format('%.0f', sold))) == 'table' then return 0, false end
  for at = 1, #over, 1000 do count = count + call('HDEL', ops, unpack(over, at, math.min(at + 999, #over))) end
  if is_there then
    try('HSET', stock, 'w', found[1] .. ' ' .. string.format('%.0f', first) .. ' ' .. begun)
  end
  return count, found[1] ~= '0'
end
