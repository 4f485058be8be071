-- Renews permits, each independently. Only lengthens. Follows semaphore.lua.
--
-- KEYS     n 1, {n 1}:timeout, n 2, {n 2}:timeout, ...
-- ARGV     for each semaphore: channel, lease (ms), number of ids, id 1, id 2, ...
-- Returns  for each semaphore an array, for each id 1 if it is held, with at least the lease left,
--          else 0; or an error.
--
-- What Redisson sees: its own updateLeaseTime.
local now, at, reply = server_time(), 1, {}
for i = 1, #KEYS, 2 do
  local channel, lease, from, to = ARGV[at], ARGV[at + 1], at + 3, at + 2 + ARGV[at + 2]
  at = to + 1
  local it, bad = open(KEYS[i], KEYS[i + 1], now)
  local flags = {}
  if it then
    local ids
    ids, flags = held(KEYS[i + 1], from, to)
    if #ids > 0 then
      local entries, ends = {}, string.format('%.0f', it.ms + lease)
      for j, id in ipairs(ids) do
        entries[2 * j - 1], entries[2 * j] = ends, id
      end
      local done = arm(KEYS[i + 1])
      if type(done) == 'number' then done = try('ZADD', KEYS[i + 1], 'XX', 'GT', unpack(entries)) end
      if type(done) ~= 'number' then flags = done end
    end
    if it.changed then tell(channel, it.left) end
  elseif bad.err and not find(bad.err, 'WRONGTYPE', 1, true) then
    flags = bad
  else
    -- No longer a semaphore: it was overwritten, so no permit is held.
    for j = from, to do flags[#flags + 1] = 0 end
  end
  reply[#reply + 1] = flags
end
return reply
