-- kinds: the functions of each kind of lock, for scripts that take items of several kinds. The
-- pieces that follow fill it (mutex_take.lua, rw_take.lua, rw_free.lua, ...). Not a script by
-- itself. Requests for mutexes alone have their own, leaner scripts.
--
-- kinds['m'] mutex, ['f'] fair, ['r'] read, ['w'] write: each a table of functions, of which a
-- script needs some.
--
--   look(item, now)       looks for an acquire, without changes that affect others. Returns nothing
--                         if the item can be granted (an existing grant counts), else ms until
--                         another look is worthwhile; or nil and the reason why it is not a lock
--                         (see reply.rs). item = {lock, counter, owner, ...}; look may add names
--   wait(item, wait, lease, life, alone)
--                         after a refusal, for a caller that waits at most `wait` ms: joins the
--                         queue, or sets the intent. life: see tokens.lua, as text. alone: one item
--                         and no token floor, so that a release can grant it
--   place(item)           of fair locks, before wait: whether the owner is queued
--   give_up(item)         of fair locks, before wait: takes the owner out of the queue
--   do_not_wait(item)     of write locks: ends the owner's intent, since it also waits for
--                         something other than readers
--   grant(item, lease)    writes the hold; tokens are settled. Returns an error reply if the server
--                         refuses
--   undo(item)            takes back what grant wrote, all of it or a part
--   free(lock, owner)     releases a hold. Returns what free() returns, see free.lua; or -3 if it
--                         was released but the lock is still held, so that nobody was told
--   wake(lock, gone)      of fair locks: after a hold has ended in another way; see fair_wake.lua
--   leave(lock, owner)    stops waiting: gives up the place in the queue, ends the intent, wakes
--                         the waiters that this concerns
--   renew(lock, owner, lease)
--                         renews a hold; only lengthens. Returns 1, or 0 if the owner does not hold
--                         it
--   refresh(lock, owner, now, far)
--                         notes that a waiter is alive: called for all waiters of a call before the
--                         first stay. far: for longer, if others of its manager are kept meanwhile
--   stay(lock, owner, lease, now)
--                         keeps a waiter. Returns -ms until another look is worthwhile; 1 if it
--                         holds the lock by now; 0 if it has lost its place
--   linger(lock, owner, ms)
--                         keeps the hold for at most `ms`. Returns 1, or 0 if the owner does not
--                         hold it
-- lease, wait and the like are numbers. Times are in ms, except `now`: the server time in us.
--
-- Names are derived from the lock's as Redisson does it: they share its hash tag, and so its slot.
-- Scripts declare only the keys that exist while a lock is held.
local kinds = {m = {}, f = {}, r = {}, w = {}}
local call, try, find = redis.call, redis.pcall, string.find

-- Returns the lock's name with a hash tag.
local function tag(lock)
  if find(lock, '{', 1, true) then return lock end
  return '{' .. lock .. '}'
end

-- Publishes and returns how many heard it; -2 if the user has no right to publish.
local function tell(channel, message)
  local told = try('PUBLISH', channel, message)
  if type(told) == 'number' then return told end
  return -2
end

-- Returns what `step` returns, or the error reply that it raises: an error on one item does not
-- affect the others.
local function safely(step, ...)
  local ok, answer = pcall(step, ...)
  if not ok and type(answer) ~= 'table' then return redis.error_reply(answer) end
  return answer
end

-- Whether a failed command says that the key is not a hash: the lock was overwritten, so nobody
-- holds it.
local function overwritten(failed)
  return find(failed.err, 'WRONGTYPE', 1, true)
end
