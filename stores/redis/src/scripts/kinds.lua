-- kinds: what each kind of lock does in each step, for the scripts that take items of several
-- kinds. Filled by the pieces that stand behind this (mutex_take.lua, rw_take.lua, rw_free.lua,
-- ...); not a script by itself. Requests for mutexes alone have scripts of their own, which are
-- leaner.
--
-- kinds['m'] mutex, ['f'] fair, ['r'] read, ['w'] write; each a table of functions, of which a
-- script needs some:
--
--   look(item, now) takes a look for an acquire and changes nothing that matters to others. Returns
--   nothing when the
--                           item can be granted (a grant that is there already counts), else ms until another look is
--                           worth it; or nil and the reason why this is not a lock (listed in reply.rs).
--                           item = {lock, counter, owner, ...}; what look finds out it may keep there under names.
--   wait(item, wait, lease, life, alone) after a refusal, for a caller who waits at most `wait` ms:
--   joins the queue, sets the
--                           intent. life: see tokens.lua, as text; alone: one item and no token floor, so that whoever frees
--                           it can grant it
--   place(item), give_up(item) of fair locks, before wait: whether the owner is queued; it is not
--   any more do_not_wait(item) of write locks: the owner's intent ends, since it waits for
--   something else than readers, too grant(item, lease) writes the hold; tokens are settled.
--   Returns an error reply when the server refuses. undo(item) takes back what grant wrote, whether
--   it was all of it or not free(lock, owner) gives a hold back. Returns what free() does, see
--   free.lua; or -3: given back, but the lock is held
--                           still, so nobody was told
--   wake(lock, gone) of fair locks: after a hold was ended in another way; see fair_wake.lua
--   leave(lock, owner) stops waiting: gives up the place in the queue, ends the intent, wakes
--   whoever that concerns keep(lock, owner, lease) renews a hold; only lengthens. Returns 1, or 0
--   when the owner does not hold it refresh(lock, owner, now, far) a waiter lives: called for all
--   waiters of a call before the first stay. far: for
--                           longer, if others of its manager are kept meanwhile
--   stay(lock, owner, lease, now) keeps a waiter. Returns -ms until another look is worth it; 1
--   when it holds the lock by
--                           now; 0 when it has lost its place
--   linger(lock, owner, ms) the hold stays, but at most for so long. Returns 1, or 0 when the owner
--   does not hold it lease, wait and the like are numbers. Times are ms, `now` is the server time
--   in us.
--
-- Names are derived from the lock's, as Redisson does it: they share its hash tag, and so its slot.
-- Scripts declare the keys that exist while a lock is held, no others.
local kinds = {m = {}, f = {}, r = {}, w = {}}
local call, try, find = redis.call, redis.pcall, string.find

-- The lock's name with a hash tag.
local function tag(lock)
  if find(lock, '{', 1, true) then return lock end
  return '{' .. lock .. '}'
end

-- Publishes and says how many heard it; -2: nobody could be told, for want of the right to publish.
local function tell(channel, message)
  local told = try('PUBLISH', channel, message)
  if type(told) == 'number' then return told end
  return -2
end

-- What `step` returns, or the error reply that it raises: an error on one item does not affect the
-- others.
local function safely(step, ...)
  local ok, answer = pcall(step, ...)
  if not ok and type(answer) ~= 'table' then return redis.error_reply(answer) end
  return answer
end

-- Whether a failed command says that the key is no hash: somebody wrote over the lock, so nobody
-- holds anything.
local function overwritten(failed)
  return find(failed.err, 'WRONGTYPE', 1, true)
end
