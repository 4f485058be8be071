-- The marker of a server that is one of a quorum: since when it has forgotten nothing.
--
-- KEYS     marker
-- ARGV     'look', 'make' or 'first'; the run of the server, `run_id` of INFO, or '-' when that is
--          not known; for 'first' the last server time (us) at which it may be executed
-- Returns  {now (us), since (us) as text, or '' without a marker}; 'marker' when something else is
--          there.
--
-- The marker is a STRING without TTL, '<since> <run>', so that it is there for as long as the
-- server has its data. `since` is the server time (us) at which it was made, or 0 when it was made
-- by the first who used the server. A marker of another run is made anew, since a server that was
-- started again may have read an old snapshot. So is one from the future, since the clock was set
-- back: else the server had no vote until its clock has caught up. Redisson knows nothing of it.
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000000 + tonumber(time[2])
local found, since, run = redis.call('GET', KEYS[1]), nil, nil
if found then
  since, run = string.match(found, '^(%d+) ?(%S*)$')
  if not since then return 'marker' end
end
-- A manager that does not know the run leaves that to others.
local restarted = ARGV[2] ~= '-' and run ~= ARGV[2]
local fresh = nil
if ARGV[1] == 'first' and now <= tonumber(ARGV[3]) then
  fresh = '0'
elseif ARGV[1] == 'make' and (not since or restarted or tonumber(since) > now) then
  fresh = string.format('%.0f', now)
end
if fresh then redis.call('SET', KEYS[1], fresh .. ' ' .. ARGV[2]) end
return {now, fresh or since or ''}
