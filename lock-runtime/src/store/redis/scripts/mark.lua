-- The marker of a server that is one of a quorum: since when it has forgotten nothing.
--
-- KEYS     marker
-- ARGV     'look', 'make' or 'first'; for 'first' the last server time (us) at which it may be executed
-- Returns  {now (us), since (us) as text, or '' without a marker}; 'marker' when something else is there.
--
-- The marker is a STRING without TTL, so that it is there for as long as the server has its data: the server time (us) at
-- which it was made, or 0 when it was made by the first who used the server. One from the future, since the clock was set
-- back, is made anew: else the server had no vote until its clock has caught up. Redisson knows nothing of it.
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000000 + tonumber(time[2])
local since = redis.call('GET', KEYS[1])
if since and not string.find(since, '^%d+$') then return 'marker' end
if ARGV[1] == 'first' and now <= tonumber(ARGV[2]) then
  since = '0'
  redis.call('SET', KEYS[1], since)
elseif ARGV[1] == 'make' and (not since or tonumber(since) > now) then
  since = string.format('%.0f', now)
  redis.call('SET', KEYS[1], since)
end
return {now, since or ''}
