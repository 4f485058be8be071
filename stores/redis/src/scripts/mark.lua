-- The marker of a server in a quorum: since when the server has forgotten nothing.
--
-- KEYS     marker
-- ARGV     'look', 'make' or 'first'; the run of the server, `run_id` of INFO, or '-' if it is not
--          known; for 'first' the latest server time (us) at which it may be executed
-- Returns  {now (us), since (us) as text, or '' without a marker}; 'marker' if the key is not a
--          marker.
--
-- The marker is a STRING '<since> <run>' without a TTL, so that it exists as long as the server has
-- its data. `since` is the server time (us) at which it was made, or 0 if the first user of the
-- server made it. The marker of another run is replaced, since a restarted server may have read an
-- old snapshot. So is a marker from the future, which shows that the clock was set back: otherwise
-- the server would have no vote until its clock has caught up. Redisson does not know the marker.
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000000 + tonumber(time[2])
local found, since, run = redis.call('GET', KEYS[1]), nil, nil
if found then
  since, run = string.match(found, '^(%d+) ?(%S*)$')
  if not since then return 'marker' end
end
-- A manager that does not know the run leaves this to others.
local restarted = ARGV[2] ~= '-' and run ~= ARGV[2]
local fresh = nil
if ARGV[1] == 'first' and now <= tonumber(ARGV[3]) then
  fresh = '0'
elseif ARGV[1] == 'make' and (not since or restarted or tonumber(since) > now) then
  fresh = string.format('%.0f', now)
end
if fresh then redis.call('SET', KEYS[1], fresh .. ' ' .. ARGV[2]) end
return {now, fresh or since or ''}
