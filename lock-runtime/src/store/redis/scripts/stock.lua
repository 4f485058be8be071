-- What the scripts of stocks in one slot have in common; not a script by itself.
--
-- HASH lock_stock:{n}: n segments, m of them ever, e epoch, i initial, r restocked; of segment k ak available, hk held, uk all
-- that it accounts for: what of that is neither available nor held is sold. fk the largest token shown there.
-- ZSET lock_stock_holds:{n}: the operations that are reserved, by the end of their reservation in ms.
-- STRING lock_stock_op:{n}:<operation>: "<state> <reserved> <quantity> <ms> <k>:<units> …"; the time is the end of a reservation.
-- It expires with the retention, from when the operation is settled. Where n has a hash tag of its own and goes on behind it,
-- there is a } for the last :.
-- States: S sold, H held, C cancelled, E expired, B given back, N cancelled before it came, R restocked. T is S, until the
-- time that stands there: such records are written several at a time, which no command does for keys that expire.
-- LIST lock_stock_old:{n}: "<ms> <operation>\n<operation> …", which of these are over then.
local try, call, find, match, gmatch = redis.pcall, redis.call, string.find, string.match, string.gmatch

local function server_time()
  local time = call('TIME')
  return time[1] * 1000000 + time[2]
end

-- The record of an operation: {state, reserved, quantity, ends, parts}, nil if there is none, or nil and what is wrong.
local function read(text, ms)
  if not text then return nil end
  local state, reserved, quantity, ends, parts = match(text, '^([STHCEBNR]) ([01]) (%d+) (%d+)(.*)$')
  if not state then return nil, 'record' end
  if state == 'T' then
    if tonumber(ends) <= ms then return nil end
    state, ends = 'S', 0
  end
  return {state = state, reserved = reserved, quantity = tonumber(quantity), ends = tonumber(ends), parts = parts}
end

local function write(record)
  return string.format('%s %s %.0f %.0f%s', record.state, record.reserved, record.quantity, record.ends, record.parts)
end

-- A number of the stock's hash; nothing is 0.
local function number(stock, field)
  return tonumber(call('HGET', stock, field) or 0)
end

-- The units of an operation move from one column to another: a available, h held, s sold; those of a retired segment become
-- available where others take them, and are accounted for there.
local function move(stock, record, from, to, n)
  for k, units in gmatch(record.parts, ' (%d+):(%d+)') do
    local home = string.format('%d', tonumber(k) % n)
    local less = '-' .. units
    if from ~= 's' then call('HINCRBY', stock, from .. (from == 'a' and home or k), less) end
    if to ~= 's' then call('HINCRBY', stock, to .. (to == 'a' and home or k), units) end
    if home ~= k then
      local at = to == 'a' and home or from == 'a' and k
      if at then
        call('HINCRBY', stock, 'u' .. (at == home and k or home), less)
        call('HINCRBY', stock, 'u' .. at, units)
      end
    end
  end
end

-- Forgets what is over of so many entries of the list. Returns how many records.
local function purge(stock, most, ms)
  local count = 0
  local tag = string.sub(stock, 12)
  local old, prefix = 'lock_stock_old:' .. tag, 'lock_stock_op:' .. tag .. (find(tag, '}$') and ':' or '}')
  for _ = 1, most do
    local entry = try('LINDEX', old, 0)
    if type(entry) ~= 'string' then return count end
    local ends, operations = match(entry, '^(%d+) (.*)$')
    if not ends or tonumber(ends) > ms then return count end
    for operation in gmatch(operations, '[^\n]+') do
      local key = prefix .. operation
      local text = try('GET', key)
      -- One that was given back since, or that somebody has made anew, has a time of its own.
      local state, over = match(type(text) == 'string' and text or '', '^(.) %d %d+ (%d+)')
      if state == 'T' and tonumber(over) <= ms then count = count + call('DEL', key) end
    end
    call('LPOP', old)
  end
  return count
end
