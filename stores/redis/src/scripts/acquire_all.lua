-- Takes every lock or none. Follows grant_all.lua.
--
-- KEYS     lock 1, counter 1, lock 2, counter 2, ...
-- ARGV     lease (ms), tokens wanted, life of a counter beyond the lease (ms; 0 = forever),
--          latest server time (us), token floor (0 = none), owner 1, owner 2, ...
-- Returns  what grant() returns, see grant_all.lua.
return grant(0)
