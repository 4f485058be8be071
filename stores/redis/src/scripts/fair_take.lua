-- How fair locks are acquired; see kinds.lua and fair_queue.lua. A free lock goes to the head of
-- the queue, or to anyone if nobody waits.
--
-- What Redisson sees: its own fair lock, a waiter with its place and its deadline. Also a message
-- `0` to its own waiter that has become the head, which Redisson does not send.

function kinds.f.look(item, now)
  local lock, owner = item[1], item[3]
  local f = fair(lock, now)
  item.fair, item.left = f, call('PTTL', lock)
  if item.left == -1 then return nil, 'no-ttl' end
  item.queued = call('EXISTS', f.queue, f.alive) > 0
  local head, record, gone
  if item.queued then
    -- A waiter that asks is alive.
    local mine = record_of(call('HGET', f.alive, owner))
    if mine then
      live(f, owner, mine, math.max(mine.by, f.ms + WAITER_LIFE))
      mark(f, owner)
    end
    head, record, gone = head_of(f)
    if not head then expire(f) end
  end
  if item.left ~= -2 then
    local found = call('HMGET', lock, 'mode', owner)
    if found[2] and not found[1] then return end
    if odd(lock) then return nil, 'field' end
    return math.max(item.left, 1)
  end
  if not head or head == owner then return end
  if gone then tell(f.channel .. ':' .. head, '0') end
  return patience(f, head, record)
end

function kinds.f.place(item)
  item.placed = has_place(item.fair, item[3])
  return item.placed
end

function kinds.f.give_up(item)
  local f = item.fair
  take_out(f, item[3])
  item.placed = false
  local head = item.left == -2 and head_of(f)
  if head then tell(f.channel .. ':' .. head, '0') end
end

function kinds.f.wait(item, wait, lease, life, alone)
  local f, owner = item.fair, item[3]
  if item.placed then return expire(f) end
  -- Checked again: `a` and `{a}` are two locks with one queue, and the other may just have joined.
  if not has_place(f, owner) then
    local place = call('ZSCORE', f.timeout, owner) and call('LPOS', f.queue, owner)
    if not place then
      if not whole(f) and call('LPOS', f.queue, owner) then call('LREM', f.queue, 0, owner) end
      local last = call('LINDEX', f.queue, -1)
      local base = last and call('ZSCORE', f.timeout, last)
      if not last then call('DEL', f.timeout, f.alive, f.managers) end
      local late = tonumber(call('HGET', f.managers, '')) or 0
      base = base and math.max(base - late - f.ms, 0) or math.max(item.left, 0)
      call('ZADD', f.timeout, digits(f.ms + base + wait + late), owner)
      call('RPUSH', f.queue, owner)
    end
    note(f, owner, {
      wait = wait, by = f.ms + WAITER_LIFE, lease = digits(math.min(lease, 5000)), direct = alone and '1' or '0',
      life = life, raised = '0'
    })
    mark(f, owner)
    if not surely_whole(f) then scan(f, 0, 0, KEPT_AHEAD) end
  end
  expire(f)
end

function kinds.f.grant(item, lease)
  local failed = kinds.m.grant(item, lease)
  if failed or not item.queued then return failed end
  take_out(item.fair, item[3])
  tell_java(item.fair)
end

kinds.f.undo = kinds.m.undo
