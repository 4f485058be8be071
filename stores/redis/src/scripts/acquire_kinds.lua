-- Takes every item or none, whatever their kinds. Follows tokens.lua, kinds.lua and the pieces of
-- the kinds.
--
-- KEYS     lock 1, counter 1, lock 2, counter 2, ..., then further keys that are only declared
-- ARGV     lease (ms), tokens wanted, life of a counter beyond the lease (ms; 0 = forever),
--          latest server time (us), token floor (0 = none), longest wait (ms; -1 = does not wait),
--          then kind 1, owner 1, kind 2, owner 2, ...
-- Returns  what take() returns, see grant.lua, but for the number of listeners, and with the time
--          until another look is worth it (ms); or {2, now} if this arrived after the latest server
--          time. Nothing is taken in any case but a grant. A refused caller that waits has joined
--          the queues of its fair items, and keeps new readers out of its write items that are
--          read.
--
-- What Redisson sees: see the pieces of the kinds.
--
-- Scripts have no roll-back, so everything that can fail comes first. Every item is looked at, then
-- the counters are moved (full memory, read-only and overflow show here), and only then are the
-- locks written.
local time = call('TIME')
local now = time[1] * 1000000 + time[2]
if now > tonumber(ARGV[4]) then return {2, now} end
local lease, wait, items, refusal = tonumber(ARGV[1]), tonumber(ARGV[6]), {}, nil

for i = 1, (#ARGV - 6) / 2 do
  local item = {KEYS[2 * i - 1], KEYS[2 * i], ARGV[2 * i + 6]}
  item.kind = kinds[ARGV[2 * i + 5]]
  items[i] = item
  local left, reason = item.kind.look(item, now)
  if reason then return {3, now, i, reason} end
  item.refused = left
  if left and not refusal then
    refusal = {0, now, i, left}
    if wait < 0 then return refusal end
  end
end
if refusal then
  local alone, fairs, placed, blocked = #items == 1 and ARGV[5] == '0', 0, 0, false
  for _, item in ipairs(items) do
    if item.kind == kinds.f then
      fairs = fairs + 1
      if kinds.f.place(item) then placed = placed + 1 end
    end
    -- Held by something other than readers.
    if item.refused and not (item.kind == kinds.w and item.mode == 'read') then blocked = true end
  end
  for _, item in ipairs(items) do
    -- Places in several queues are taken together. Otherwise two requests could each be first in
    -- one queue and wait for each other. So if one place was lost, all are given up.
    if placed > 0 and placed < fairs and item.kind == kinds.f then kinds.f.give_up(item) end
    -- Readers are kept out only if nothing but readers is in the way.
    if blocked and item.kind == kinds.w then kinds.w.do_not_wait(item) end
  end
  for _, item in ipairs(items) do
    local waits = item.kind.wait and not (blocked and item.kind == kinds.w)
    if waits then item.kind.wait(item, wait, lease, ARGV[3], alone) end
  end
  return refusal
end

local refused, tops = tokens(now, items, lease, ARGV[2], ARGV[3], ARGV[5])
if refused then return refused end
for i, item in ipairs(items) do
  local failed = item.kind.grant(item, lease)
  if failed then
    -- Only reached if the user lacks a right. A lock must never be left without a TTL.
    for j = 1, i do items[j].kind.undo(items[j]) end
    return failed
  end
end
return tops
