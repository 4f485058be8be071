-- Takes every lock or none.
--
-- KEYS     lock 1, counter 1, lock 2, counter 2, ...
-- ARGV     lease (ms), tokens wanted, life of a counter beyond the lease (ms; 0 = keep for ever),
--          latest server time (us), token floor (0 = none), owner 1, owner 2, ...
-- Returns what grant() says, see grant_all.lua, which stands in front of this with grant.lua; a = 0.
return grant(0)
