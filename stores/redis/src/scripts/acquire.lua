-- Takes locks independently, for requests that travel together. Or takes them over: first frees
-- each for its owner, then takes it for the new owner unless others listen.
--
-- KEYS     lock 1, counter 1, lock 2, counter 2, ...
-- ARGV     latest server time (us), life of a counter beyond the lease (ms; 0 = forever), then
--            lease (ms), tokens wanted, owner 1, owner 2, ...        the same for all locks; or
--            owner, lease, tokens wanted                             for each of several; or
--            owner, lease, tokens wanted, present owner, channel, maximum number of listeners on it
--              with which the lock is taken ('': any number)         for each lock
-- Returns  for each lock what take() returns for it alone (grant.lua), {2, now} if this arrived
--          after the latest server time, or an error. For a single lock the bare answer, for
--          several an array. When locks are taken over always an array: an answer may then also
--          be 0 (not tried), and what free() returns for each lock follows (free.lua). What is
--          freed stays freed, whatever happens to the rest.
--
-- What Redisson sees: see grant.lua and free.lua.
--
-- This piece handles the plain state only: a free lock whose counter is behind the server's clock.
-- It needs five commands where take() needs eight. A counter that is ahead or is not an integer is
-- restored before take() handles it. The piece has no functions, since defining one costs as much
-- as a command. tokens.lua, grant.lua and acquire_rest.lua follow it and handle everything else.
local try, find, keys, args = redis.pcall, string.find, KEYS, ARGV
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local late, life, n = now > tonumber(args[1]), tonumber(args[2]), #keys / 2
local alike, over = #args == n + 4, #args == 6 * n + 2
local lease, want = args[3], args[4]
local answers, rest, text, texts_want, top = {}, nil, nil, nil, nil

-- Usually one command says that all locks are free, as of before this call. If two members want the
-- same key, the first one's token moves the counter ahead of the clock for the second, so take()
-- looks again.
local free = false
if n > 1 and not late and not over then
  local locks = {}
  for i = 1, n do locks[i] = keys[2 * i - 1] end
  free = try('EXISTS', unpack(locks)) == 0
end

for i = 1, n do
  local lock, owner, plain = keys[2 * i - 1], nil, false
  if alike then
    owner = args[i + 4]
  elseif over then
    local at = 6 * i - 3
    local limit = args[at + 5]
    owner, lease, want = args[at], args[at + 1], args[at + 2]
    -- As in free.lua.
    local freed = try('HDEL', lock, args[at + 3])
    if freed == 1 then
      freed = try('PUBLISH', args[at + 4], '0')
      if type(freed) ~= 'number' then freed = -2 end
    elseif freed == 0 or find(freed.err, 'WRONGTYPE', 1, true) then
      freed = -1
    end
    answers[n + i] = freed
    if type(freed) ~= 'number' or freed == -1 or limit ~= '' and (freed == -2 or freed > tonumber(limit)) then
      answers[i] = 0
    end
  else
    owner, lease, want = args[3 * i], args[3 * i + 1], args[3 * i + 2]
  end
  if answers[i] then
    -- The lock cannot be had.
  elseif late then
    answers[i] = {2, now}
  else
    if free or try('PTTL', lock) == -2 then
      local counter = keys[2 * i]
      if want ~= texts_want then
        top = now + want
        text, texts_want = string.format('%.0f', top), want
      end
      -- The token is settled before the lock is written. A type error or full memory shows here,
      -- before anything is done.
      local old = try('SET', counter, text, 'KEEPTTL', 'GET')
      if type(old) == 'table' then
        answers[i] = old
      else
        local last = not old and 0 or find(old, '^[1-9]%d*$') and tonumber(old)
        if last and last < now then
          plain = true
          if not old then
            if life > 0 then try('PEXPIRE', counter, life + lease) end
          elseif life == 0 then
            try('PERSIST', counter)
          elseif lease * 8 > life or now - last + 131072 > now % (life * 50) then
            -- Extends the counter's life at the first grant in each twentieth of it, and at each
            -- grant with a long lease. A counter without a time to live belongs to Redisson.
            local left = try('PTTL', counter)
            if left ~= -1 and left < life + lease then try('PEXPIRE', counter, life + lease) end
          end
        else
          try('SET', counter, old, 'KEEPTTL')
        end
      end
    end
    if plain then
      local done = try('HSET', lock, owner, '1')
      if done == 1 then done = try('PEXPIRE', lock, lease) end
      if done == 1 then
        answers[i] = top
      else
        -- Only reached if the user lacks a right. A lock must never be left without a TTL.
        try('HDEL', lock, owner)
        answers[i] = done
      end
    elseif not answers[i] then
      rest = rest or {}
      rest[#rest + 1] = {i, {lock, keys[2 * i], owner}, lease, want}
    end
  end
end
if not rest then
  if n == 1 and not over then return answers[1] end
  return answers
end

