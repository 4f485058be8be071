-- How fair locks are released; see kinds.lua. Follows fair_wake.lua and mutex_free.lua.
--
-- What Redisson sees: its own release, which deletes the field, and the key with its last field;
-- then see fair_wake.lua. Or its own waiter that gives up.
--
-- Full memory refuses nothing here: the first write is never refused, and it lets the others
-- through.

function kinds.f.free(lock, owner)
  local done = try('HDEL', lock, owner)
  if done == 0 then return -1 end
  if done ~= 1 then
    if overwritten(done) then return -1 end
    return done
  end
  -- The release stands, whatever is wrong with the queue.
  local ok, told = pcall(kinds.f.wake, lock, owner)
  return ok and told or 0
end

function kinds.f.leave(lock, owner)
  local f = fair(lock)
  local first = try('LINDEX', f.queue, 0)
  -- Nobody waits, or the queue is foreign data.
  if type(first) ~= 'string' then return end
  take_out(f, owner)
  local head = head_of(f)
  if head and head ~= first and call('EXISTS', lock) == 0 then wake(f) end
end

function kinds.f.linger(lock, owner, ms)
  local mine = field_of(lock, owner)
  if mine ~= 1 then return mine end
  local left = call('PTTL', lock)
  if left == -1 or left > ms then
    call('PEXPIRE', lock, ms)
    local f = fair(lock)
    local head = try('LINDEX', f.queue, 0)
    if type(head) == 'string' then tell(f.channel .. ':' .. head, '0') end
  end
  return 1
end
