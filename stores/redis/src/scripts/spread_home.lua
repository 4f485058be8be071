-- The record of an operation at its home. Follows spread.lua.
--
-- KEYS     the record, the home's list of open operations
-- ARGV     latest server time (us), how, operation, …
--            look
--            open: kind, quantity, hold (ms; -1: none), time to decide (ms), parts, time (us) than
--              which the record must be newer
--            plan: time to decide (ms), born, version, parts                wanted from now on
--            decide: time to carry out (ms), retention (ms), born, version  the units are there
--            drop: born, version                                            no units anywhere
--            confirm, cancel, give_back, expire: time to carry out (ms), retention (ms)
--            done: retention (ms), born, version                            it is carried out
--            tidy: removes the operation from the list if it is over
--          Or with the list alone: due, how many. Then returns {1, now, operation, ms, …}
-- Returns  {2, now}: too late. {3, now}: foreign data. Or {1, now, changed, record before, record
--          now}; a missing record is empty. plan, decide, drop and done change only the version
--          that they name.
local key, open, operation = KEYS[1], KEYS[2], ARGV[3]
if how == 'due' then
  local due = try('ZRANGEBYSCORE', key, '-inf', whole(ms), 'WITHSCORES', 'LIMIT', 0, ARGV[3])
  if due.err then return {3, now} end
  return {1, now, unpack(due)}
end
local text = try('GET', key)
if type(text) == 'table' then return {3, now} end
text = text or ''
local record
if text ~= '' then
  local state, kind, quantity, born, version, ends, is_open, parts =
    match(text, '^([PSHCEBNR]) ([shr]) (%d+) (%d+) (%d+) (%d+) ([01])(.*)$')
  if not state then return {3, now} end
  record = {state = state, kind = kind, quantity = quantity, born = born, version = version, ends = ends, open = is_open, parts = parts}
end

local function answer(changed)
  if not changed then return {1, now, 0, text, text} end
  local is = record and table.concat({record.state, record.kind, record.quantity, record.born, record.version, record.ends, record.open}, ' ') .. record.parts or ''
  return {1, now, 1, text, is}
end

-- Lets units come back when the server's memory is full: a script whose first command needs no
-- memory may go on. No operation has an empty name.
local function comes_back()
  local done = try('ZREM', open, '')
  return type(done) == 'table' and done or nil
end

-- Writes the record and its place in the list: `at` is when it has to be looked at, nil if nothing
-- of it is open.
local function write(at, retention)
  local is = answer(true)[5]
  local done
  if at then
    -- The list comes first: an open record that is not in it would stay forever.
    done = try('ZADD', open, whole(at), operation)
    if type(done) == 'table' then return done end
    done = try('SET', key, is)
  else
    done = try('SET', key, is, 'PX', retention)
  end
  if done.err then return done end
  if not at then call('ZREM', open, operation) end
  return answer(true)
end

local function after(version)
  return whole(tonumber(version) + 1)
end

if how == 'look' then return answer(false) end
if how == 'tidy' then
  if not record or record.open == '0' and record.state ~= 'H' then call('ZREM', open, operation) end
  return answer(false)
end
if how == 'open' then
  if record then return answer(false) end
  local hold = tonumber(ARGV[6])
  local born = whole(math.max(now, ARGV[9] + 1))
  record = {state = 'P', kind = ARGV[4], quantity = ARGV[5], born = born, version = born,
    ends = hold >= 0 and whole(hold) or '0', open = '1', parts = ARGV[8]}
  return write(ms + ARGV[7])
end
if how == 'plan' or how == 'decide' or how == 'drop' or how == 'done' then
  local at = ({plan = 5, decide = 6, drop = 4, done = 5})[how]
  if not record or record.born ~= ARGV[at] or record.version ~= ARGV[at + 1] then return answer(false) end
  if how == 'done' then
    if record.state == 'P' or record.open == '0' then return answer(false) end
    local refused = comes_back()
    if refused then return refused end
    record.open = '0'
    if record.state == 'H' then return write(tonumber(record.ends)) end
    return write(nil, ARGV[4])
  end
  if record.state ~= 'P' then return answer(false) end
  if how == 'plan' then
    if not string.find(ARGV[7], ':[1-9]') then
      local refused = comes_back()
      if refused then return refused end
    end
    record.version, record.parts = after(record.version), ARGV[7]
    return write(ms + ARGV[4])
  elseif how == 'drop' then
    record = nil
    call('DEL', key)
    call('ZREM', open, operation)
    return answer(true)
  end
  record.state = ({s = 'S', h = 'H', r = 'R'})[record.kind]
  -- The duration counts from now, rounded up so that the last millisecond counts too.
  if record.state == 'H' then record.ends = whole(math.ceil(now / 1000) + record.ends) end
  -- Units from several segments count as undecided there until the segments are told.
  local parts = 0
  for units in string.gmatch(record.parts, ':(%d+)') do
    if units ~= '0' then parts = parts + 1 end
  end
  if parts > 1 and record.kind ~= 'r' then
    record.version = after(record.version)
    return write(ms + ARGV[4])
  end
  record.open = '0'
  if record.state == 'H' then return write(tonumber(record.ends)) end
  return write(nil, ARGV[5])
end

if not record then
  if how ~= 'cancel' then return answer(false) end
  record = {state = 'N', kind = 's', quantity = '0', born = whole(now), version = whole(now), ends = '0', open = '0', parts = ''}
  return write(nil, ARGV[5])
end
local before, state = record.state, record.state
if before == 'P' and how == 'cancel' and record.kind ~= 'r' then
  state = 'C'
elseif before == 'H' and how ~= 'give_back' then
  state = tonumber(record.ends) <= ms and 'E' or ({confirm = 'S', cancel = 'C', expire = 'H'})[how]
elseif before == 'S' and how == 'give_back' then
  state = 'B'
end
if state == before then return answer(false) end
if state ~= 'S' then
  local refused = comes_back()
  if refused then return refused end
end
record.state, record.version, record.open = state, after(record.version), '1'
-- A take that lacks units helps to carry out expired reservations, and finds this one in the list
-- at once.
return write(state == 'E' and ms or ms + ARGV[4])
