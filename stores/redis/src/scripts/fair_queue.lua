-- The queue of a fair lock. Follows kinds.lua. fair_take.lua, fair_wake.lua, fair_free.lua and
-- fair_keep.lua follow it and fill kinds.f, which scripts for all kinds use.
--
--   lock      n                           HASH {owner: 1} with a TTL
--   queue     redisson_lock_queue:{n}     LIST of owners, the next one first
--   timeout   redisson_lock_timeout:{n}   ZSET owner -> deadline (ms, server time) after which
--                                         Redisson purges a head
--   channel   redisson_lock__channel:{n}:<owner>
--                                         one for each waiter: `0` try again; to our waiters also
--                                         `g:<token>:<server us>` if the release has granted it the
--                                         lock. Redisson's waiters get numbers only
--   alive     lock_fair_alive:{n}         HASH owner -> 'W by C direct life raised', ours alone.
--                                         A waiter without a record is Redisson's
--               W       wait (ms), fixed when it joined
--               by      server time (ms) after which it counts as dead
--               C       lease (ms) of a direct grant
--               direct  1 if it can be granted directly
--               life    see tokens.lua
--               raised  1 if its deadline was raised, see scan()
--   managers  lock_fair_managers:{n}      HASH manager -> server time (ms) after which it counts as
--                                         dead; '' -> gone. Ours alone
--
-- What Redisson sees: its own queue. A new deadline is that of the last waiter in the queue (the
-- lock's TTL if there is none) plus W. A waiter that leaves takes its W off all deadlines behind
-- it, once. A head whose deadline is over leaves without that, since it has had its time. A head of
-- ours counts as dead if its record says so, never because of its deadline.
--
-- Taking W off all deadlines of a long queue is too much work for each waiter that leaves. While
-- none of Redisson's waiters is queued, nobody reads the deadlines. So the time to take off is
-- added up in `gone`, in ms. It is taken off all deadlines when a Redisson waiter comes, also those
-- in front of the waiters that left.
--
-- Redisson treats our waiters in the same way. So a live waiter of ours needs a deadline that stays
-- ahead of the clock when Redisson's waiters in front of it leave, each with its own wait. Those
-- waits can be estimated from the deadlines: a waiter is one wait behind the one before it. A
-- waiter of ours with less than 60 s plus all these waits left is raised to 300 s plus these waits.
-- That happens when it joins behind them and whenever it is kept. Waits longer than 300 s cannot be
-- seen, so ours may be purged because of them.
--
-- None of these keys outlives its waiters. Ours report often that they are alive, so 10 s suffice
-- for them. Redisson's dead waiters are known only by their deadlines, which follow Java's clock:
-- the keys live until the last of them and 6 minutes more, for those that join meanwhile. When none
-- of ours is left, the queue never expires, as with Redisson: its waiters would not notice that the
-- queue is gone, and nobody would wake them. An empty queue has no keys.

local LONGEST_WAIT, WAITER_LIFE, FAR_LIFE = 300000, 3000, 60000
-- Minimum time by which the deadline of a waiter is ahead: when it was just kept, and at any time.
local KEPT_AHEAD, LEAST_AHEAD = 60000, 10000

local function fair(lock, now)
  if not now then
    local time = call('TIME')
    now = time[1] * 1000000 + time[2]
  end
  local tagged = tag(lock)
  return {
    lock = lock, us = now, ms = math.floor(now / 1000), counter = 'redisson_lock_token:' .. tagged,
    queue = 'redisson_lock_queue:' .. tagged, timeout = 'redisson_lock_timeout:' .. tagged,
    alive = 'lock_fair_alive:' .. tagged, managers = 'lock_fair_managers:' .. tagged, channel = 'redisson_lock__channel:' .. tagged
  }
end

local function digits(number)
  return string.format('%.0f', number)
end

-- Parses the record in `text`, which may be false.
local function record_of(text)
  if not text then return end
  local wait, by, lease, direct, life, raised = string.match(text, '^(%d+) (%d+) (%d+) ([01]) (%d+) ([01])$')
  if not wait then return end
  return {wait = tonumber(wait), by = tonumber(by), lease = lease, direct = direct, life = life, raised = raised}
end

local function note(f, id, record, write)
  local text = {digits(record.wait), digits(record.by), record.lease, record.direct, record.life, record.raised}
  return (write or call)('HSET', f.alive, id, table.concat(text, ' '))
end

-- Notes that a waiter of ours is alive until `by`.
local function live(f, id, record, by)
  record.by = by
  if type(note(f, id, record, try)) == 'number' then return end
  -- Removes nothing, but is a write that full memory does not refuse, so that the next is not
  -- refused either.
  call('HDEL', f.alive, '')
  note(f, id, record)
end

-- Notes that the manager of this waiter is alive.
local function mark(f, id)
  call('HSET', f.managers, string.match(id, '^(.*):'), digits(f.ms + WAITER_LIFE))
end

-- Whether the waiter of this record is alive. A waiter whose record lasts longer than
-- WAITER_LIFE is alive as long as its manager is.
local function lives(f, id, record)
  if record.by <= f.ms then return false end
  if record.by <= f.ms + WAITER_LIFE then return true end
  local by = tonumber(call('HGET', f.managers, string.match(id, '^(.*):')))
  return by and by > f.ms
end

-- Sets the TTLs of the queue's keys, at the end of every change.
local function expire(f)
  local count = call('LLEN', f.queue)
  if count == 0 then
    call('DEL', f.queue, f.timeout, f.alive, f.managers)
    return
  end
  local records = call('HLEN', f.alive)
  if records == 0 then
    call('DEL', f.managers)
    call('PERSIST', f.queue)
    call('PERSIST', f.timeout)
    return
  end
  local at = f.ms + 10000
  if records < count then
    local last = call('ZRANGE', f.timeout, -1, -1, 'WITHSCORES')
    at = math.max(f.ms, tonumber(last[2]) or 0) + 360000
  end
  at = digits(at)
  call('PEXPIREAT', f.queue, at)
  call('PEXPIREAT', f.timeout, at)
  call('PEXPIREAT', f.alive, at)
  call('PEXPIREAT', f.managers, at)
end

-- Whether each entry of the queue has a deadline and a record. Not so while Redisson's waiters are
-- queued, after they have purged ours, or if a part was deleted.
local function whole(f)
  local count = call('LLEN', f.queue)
  return call('HLEN', f.alive) == count and call('ZCARD', f.timeout) == count
end

-- Reads the whole queue, for queues that are not whole. Takes `minus` off the deadlines behind the
-- first `from`, and the added-up time off all. A live waiter of ours gets a later deadline if the
-- clock, or the waits of Redisson's waiters before it, may come within `margin` of it. Sets
-- f.queued: our waiters that have a place.
local function scan(f, from, minus, margin)
  local ids = call('LRANGE', f.queue, 0, -1)
  local ours, waits, before = 0, 0, nil
  local late = tonumber(call('HGET', f.managers, '')) or 0
  if late > 0 then call('HDEL', f.managers, '') end
  f.queued = {}
  for first = 1, #ids, 1000 do
    local last = math.min(first + 999, #ids)
    local texts = call('HMGET', f.alive, unpack(ids, first, last))
    local scores = call('ZMSCORE', f.timeout, unpack(ids, first, last))
    local moved = {}
    for i = first, last do
      local text, score, new = texts[i - first + 1], tonumber(scores[i - first + 1]), false
      local off = i > from and minus + late or late
      if score and off > 0 then
        score, new = score - off, true
      end
      if text then
        ours = ours + 1
        f.queued[ids[i]] = score
        local raised = string.sub(text, -1) == '1'
        if score and score < f.ms + margin + waits then
          local record = record_of(text)
          if record and lives(f, ids[i], record) then
            score, new = f.ms + LONGEST_WAIT + waits, true
            if not raised then
              raised, record.raised = true, '1'
              note(f, ids[i], record)
            end
          end
        end
        -- A raised deadline says nothing about the next wait, which counts from the old deadline.
        before = not raised and score
      else
        local wait = score and before and score - before
        if not wait or wait <= 0 or wait > LONGEST_WAIT then wait = LONGEST_WAIT end
        waits, before = waits + wait, score
      end
      if new then
        moved[#moved + 1] = score
        moved[#moved + 1] = ids[i]
      end
    end
    if #moved > 0 then call('ZADD', f.timeout, 'XX', unpack(moved)) end
  end
  -- Redisson purges entries, but leaves their records.
  if call('HLEN', f.alive) > ours then
    local queued = {}
    for _, id in ipairs(ids) do queued[id] = true end
    for _, id in ipairs(call('HKEYS', f.alive)) do
      if not queued[id] then call('HDEL', f.alive, id) end
    end
  end
end

-- Like whole(), but a record whose entry Redisson has purged cannot make up for an entry of
-- Redisson's. Looks at twenty records, which are all records of most queues.
local function surely_whole(f)
  local ids = call('HRANDFIELD', f.alive, 20)
  if #ids > 0 then
    local scores = call('ZMSCORE', f.timeout, unpack(ids))
    for i, id in ipairs(ids) do
      if not scores[i] then call('HDEL', f.alive, id) end
    end
  end
  return whole(f)
end

-- Accounts for a waiter that has left from behind the first `from` of the queue, with a wait of
-- `wait` ms.
local function take_off(f, from, wait)
  if not surely_whole(f) then
    scan(f, from, wait, LEAST_AHEAD)
  elseif wait > 0 then
    call('HINCRBY', f.managers, '', digits(wait))
  end
end

-- Whether `owner` has a complete place. It has three entries; the queue need not be searched for
-- the third while no part of it was deleted.
local function has_place(f, owner)
  return call('ZSCORE', f.timeout, owner) and call('HGET', f.alive, owner) and (whole(f) or call('LPOS', f.queue, owner))
end

-- Returns the head of the queue, and its record unless it is Redisson's waiter; nothing if nobody
-- waits. Removes dead heads; the third result is whether there were any.
local function head_of(f)
  local minus, gone, head, record, late = 0, false, nil, nil, nil
  while true do
    head = call('LINDEX', f.queue, 0)
    if not head then break end
    record = record_of(call('HGET', f.alive, head))
    if record and lives(f, head, record) then break end
    local score = tonumber(call('ZSCORE', f.timeout, head))
    late = late or tonumber(call('HGET', f.managers, '')) or 0
    if not score or score - late - minus > f.ms then
      if not record then break end
      minus = minus + record.wait
    end
    call('LPOP', f.queue)
    call('ZREM', f.timeout, head)
    call('HDEL', f.alive, head)
    gone = true
  end
  if gone then
    if head then take_off(f, 0, minus) end
    expire(f)
  end
  return head, record, gone
end

-- Takes `owner` out of the queue, wherever it is.
local function take_out(f, owner)
  local record = record_of(call('HGET', f.alive, owner))
  local place = call('LPOS', f.queue, owner)
  if place == 0 then
    call('LPOP', f.queue)
  elseif place then
    call('LREM', f.queue, 1, owner)
  elseif not record then
    return
  end
  call('ZREM', f.timeout, owner)
  call('HDEL', f.alive, owner)
  if place then take_off(f, place, record and record.wait or 0) end
  expire(f)
end

-- Returns how long another waiter may keep a free lock for itself before another look is worthwhile
-- (ms).
local function patience(f, head, record)
  if record then return math.max(math.min(record.by - f.ms, WAITER_LIFE), 1) end
  local score = tonumber(call('ZSCORE', f.timeout, head))
  return math.min(math.max((score or f.ms + 1000) - f.ms, 1), 1000)
end

-- Tells a Redisson waiter that it is the head: it looks by itself only after the deadline of the
-- one before it.
local function tell_java(f)
  local head, record = head_of(f)
  if head and not record then tell(f.channel .. ':' .. head, '0') end
end
