-- What the scripts of stocks in one slot have in common; not a script by itself.
--
-- HASH lock_stock:{n}: n segments, m of them ever, e epoch, i initial, r restocked; of segment k ak available, hk held, sk
-- sold, fk the largest token shown there. ZSET lock_stock_holds:{n}: the operations that are reserved, by the end of their
-- reservation in ms. STRING lock_stock_op:{n}:<operation>: "<state> <reserved> <quantity> <end in ms> <k>:<units> …";
-- it expires with the retention, from when the operation is settled.
-- States: S sold, H held, C cancelled, E expired, B given back, N cancelled before it came, R restocked.
local try, call, find, match, gmatch = redis.pcall, redis.call, string.find, string.match, string.gmatch

local function server_time()
  local time = call('TIME')
  return time[1] * 1000000 + time[2]
end

-- The record of an operation: {state, reserved, quantity, ends, parts}, nil if there is none, or nil and what is wrong.
local function read(text)
  if not text then return nil end
  local state, reserved, quantity, ends, parts = match(text, '^([SHCEBNR]) ([01]) (%d+) (%d+)(.*)$')
  if not state then return nil, 'record' end
  return {state = state, reserved = reserved, quantity = tonumber(quantity), ends = tonumber(ends), parts = parts}
end

local function write(record)
  return string.format('%s %s %.0f %.0f%s', record.state, record.reserved, record.quantity, record.ends, record.parts)
end

-- A number of the stock's hash; nothing is 0.
local function number(stock, field)
  return tonumber(call('HGET', stock, field) or 0)
end

-- The units of an operation move from one column to another; those of a retired segment become available where others
-- take them.
local function move(stock, record, from, to, n)
  for k, units in gmatch(record.parts, ' (%d+):(%d+)') do
    local home = tonumber(k) % n
    call('HINCRBY', stock, from .. (from == 'a' and home or k), '-' .. units)
    call('HINCRBY', stock, to .. (to == 'a' and home or k), units)
  end
end
