-- The queue of a fair lock; stands behind tokens.lua and kinds.lua. fair_take.lua, fair_wake.lua
-- and fair_free.lua stand behind this: they fill kinds.f, which is what the scripts use, those for
-- items of several kinds too.
--
--   lock n HASH {owner: 1} with a TTL queue redisson_lock_queue:{n} LIST of owners, the next one
--   first timeout redisson_lock_timeout:{n} ZSET owner -> deadline (ms, server time), after which
--   Redisson purges a head channel redisson_lock__channel:{n}:<owner>, one for each waiter: `0` try
--   again; to ours also `g:<token>:<server us>`
--            when the release has granted it the lock. Redisson's waiters get numbers only
--   alive lock_fair_alive:{n} HASH owner -> 'W by C direct life raised', ours alone. A waiter
--   without a record
--            is Redisson's. W: the wait in ms that was fixed when it joined; by: server ms, counts as dead after it;
--            C: lease in ms of a direct grant; direct: 1 if it can be granted directly; life: see tokens.lua;
--            raised: 1 if its deadline was moved up, see scan()
--   managers lock_fair_managers:{n} HASH manager -> server ms, counts as dead after it; '' -> gone.
--   Ours alone
--
-- What Redisson sees: its own queue. A deadline is that of the last in the queue (the lock's TTL,
-- if there is none) plus W. Whoever goes takes W off all that are behind, once. A head whose
-- deadline is over goes without that: it has had its time. A head of ours counts as dead when its
-- record says so, never for its deadline.
--
-- To take W off the deadlines of a long queue is too much work for each that goes. While none of
-- Redisson's waits nobody reads them, so what has to be taken off is added up: `gone`, in ms. It is
-- taken off all when one of Redisson's has come, also off those before whoever has gone.
--
-- Redisson does the same to ours, so a live waiter of ours needs a deadline that stays ahead of the
-- clock when Redisson's waiters before it go, each with a wait of its own. Those can be told from
-- the deadlines, more or less: a waiter is a wait behind the one before it. So one with less than
-- 60 s and all these waits to go is raised to 300 s and these waits, when it joins behind them and
-- whenever it is kept. A longer wait than 300 s can't be seen, and may purge ours.
--
-- None of these keys outlives its waiters: ours say often that they live, so 10 s are enough for
-- them. Dead ones of Redisson's are known by their deadlines only, which are of Java's clock: the
-- last of them and 6 minutes more, for those that come meanwhile. When none of ours is left the
-- queue has no end again, as Redisson has it: its waiters would not notice that it is gone, and
-- nobody would wake them. An empty queue has no keys.

local LONGEST_WAIT, WAITER_LIFE, FAR_LIFE = 300000, 3000, 60000
-- What a deadline has to be ahead by: while its waiter is kept, and until it is kept again.
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

-- The record in `text`, which may be false.
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

-- A waiter of ours lives until `by`.
local function live(f, id, record, by)
  record.by = by
  if type(note(f, id, record, try)) == 'number' then return end
  -- It removes nothing: it is a write that full memory does not refuse, so that it does not refuse
  -- the next either.
  call('HDEL', f.alive, '')
  note(f, id, record)
end

-- The manager of this waiter lives.
local function mark(f, id)
  call('HSET', f.managers, string.match(id, '^(.*):'), digits(f.ms + WAITER_LIFE))
end

-- Whether the waiter of this record lives. One that is said to live for long does so with its
-- manager.
local function lives(f, id, record)
  if record.by <= f.ms then return false end
  if record.by <= f.ms + WAITER_LIFE then return true end
  local by = tonumber(call('HGET', f.managers, string.match(id, '^(.*):')))
  return by and by > f.ms
end

-- Sets the times to live of the queue's keys, at the end of every change.
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

-- Whether each entry of the queue has a deadline and a record. Not so while Redisson's wait, after
-- these have purged ours, or when somebody has deleted a part.
local function whole(f)
  local count = call('LLEN', f.queue)
  return call('HLEN', f.alive) == count and call('ZCARD', f.timeout) == count
end

-- Reads the whole queue, for queues that are not whole. Takes `minus` off the deadlines of all
-- behind the first `from`, and what has been added up off all. Then a live waiter of ours gets a
-- later deadline when the clock or Redisson's waiters before it may come nearer than `margin` to
-- it. Finds out f.queued: those of ours that have a place.
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
        -- Whoever joined before that has a deadline that counts from the old one.
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
  -- Redisson purges entries and not their records.
  if call('HLEN', f.alive) > ours then
    local queued = {}
    for _, id in ipairs(ids) do queued[id] = true end
    for _, id in ipairs(call('HKEYS', f.alive)) do
      if not queued[id] then call('HDEL', f.alive, id) end
    end
  end
end

-- The same. A record whose entry Redisson has purged must not make up for an entry of Redisson's:
-- looks at twenty records, which are all in most queues.
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

-- Somebody has gone from behind the first `from` of the queue, who waited for `wait` ms.
local function take_off(f, from, wait)
  if not surely_whole(f) then
    scan(f, from, wait, LEAST_AHEAD)
  elseif wait > 0 then
    call('HINCRBY', f.managers, '', digits(wait))
  end
end

-- Whether `owner` has a place that is whole: all three, or somebody has deleted a part of the
-- queue.
local function has_place(f, owner)
  return call('ZSCORE', f.timeout, owner) and call('HGET', f.alive, owner) and (whole(f) or call('LPOS', f.queue, owner))
end

-- The first of the queue and its record, which Redisson's waiters don't have; nothing when nobody
-- waits. Lets go of heads that are dead; the third result is whether there were any.
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

-- How long another waiter may have a free lock for itself before another look is worth it (ms).
local function patience(f, head, record)
  if record then return math.max(math.min(record.by - f.ms, WAITER_LIFE), 1) end
  local score = tonumber(call('ZSCORE', f.timeout, head))
  return math.min(math.max((score or f.ms + 1000) - f.ms, 1), 1000)
end

-- Tells a head of Redisson's that it is that: it looks by itself only when the deadline of the one
-- before it is over.
local function tell_java(f)
  local head, record = head_of(f)
  if head and not record then tell(f.channel .. ':' .. head, '0') end
end
