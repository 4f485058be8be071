-- Passes on a fair lock that has become free. Follows fair_queue.lua.
--
-- kinds.f.wake(lock, gone) must be called after a lock was freed. `gone` is the owner that it was
-- taken from, if any. Returns what free() returns for a lock that it freed.
--
-- What Redisson sees: one message to the head of the queue. If the head is ours, it is granted the
-- lock at once, as if it had asked: it leaves the queue, the counter moves, the lock gets its
-- field. It has 5 s, or its lease if that is less, and the message contains its token.
--
-- When memory is full a server refuses commands that may need more, except in a script that has
-- already written. Every caller of this has.

-- Makes the head the holder. Returns its token, or nothing if that is impossible.
local function hand_over(f, head, record)
  local refused, top = tokens(f.us, {{f.lock, f.counter}}, record.lease, '1', record.life, '0')
  if refused then return end
  local done = try('HSET', f.lock, head, '1')
  if type(done) == 'number' then done = try('PEXPIRE', f.lock, record.lease) end
  if type(done) ~= 'number' then
    try('HDEL', f.lock, head)
    return
  end
  take_out(f, head)
  return type(top) == 'table' and top[3] or digits(top)
end

-- Gives a free lock to the head, or wakes it. `gone` is no longer the head, whatever the queue
-- says.
local function wake(f, gone)
  local head, record = head_of(f)
  if head and head == gone then
    take_out(f, gone)
    head, record = head_of(f)
  end
  if not head then return 0 end
  local channel = f.channel .. ':' .. head
  if record and record.direct == '1' then
    local ok, token = pcall(hand_over, f, head, record)
    if ok and token then
      local told = tell(channel, 'g:' .. token .. ':' .. digits(f.us))
      tell_java(f)
      return told
    end
  end
  return tell(channel, '0')
end

function kinds.f.wake(lock, gone)
  if call('EXISTS', lock) == 1 then return 0 end
  return wake(fair(lock), gone)
end
