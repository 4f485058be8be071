-- Takes locks, each on its own, for requests that travel together.
--
-- KEYS     lock 1, counter 1, lock 2, counter 2, ...
-- ARGV     latest server time (us), counter time to live (ms; 0 = keep for ever), then
--          lease (ms), tokens wanted, owner 1, owner 2, ... or, when the locks differ in the first two, for each of them
--          owner, lease, tokens wanted
-- Returns  for each lock what take() says of it alone, see grant.lua, or {2, now} when this arrived later than the latest
--          server time, or the error; for a single lock the bare answer, for several an array.
--
-- What Redisson sees: see grant.lua.
--
-- This part knows the plain state only, a free lock and a counter behind the server's clock, and does in five commands
-- what take() does in eight. A counter that is ahead, or none at all, is put back before take() has it. It has no functions, since making one costs as much as a command. tokens.lua,
-- grant.lua and acquire_rest.lua stand behind it for everything else.
local try, find, keys, args = redis.pcall, string.find, KEYS, ARGV
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local late, ttl, n = now > tonumber(args[1]), tonumber(args[2]), #keys / 2
local alike = #args == n + 4
local lease, want = args[3], args[4]
local answers, rest, text, texts_want, top = {}, nil, nil, nil, nil

-- In the usual case one command says that all locks are free. It says so of the time before this call: when two members
-- want the same key, the first one's token keeps the second one's counter from being behind the clock, and take() looks
-- again.
local free = false
if n > 1 and not late then
  local locks = {}
  for i = 1, n do locks[i] = keys[2 * i - 1] end
  free = try('EXISTS', unpack(locks)) == 0
end

for i = 1, n do
  local lock, owner, plain = keys[2 * i - 1], nil, false
  if alike then
    owner = args[i + 4]
  else
    owner, lease, want = args[3 * i], args[3 * i + 1], args[3 * i + 2]
  end
  if late then
    answers[i] = {2, now}
  else
    if free or try('PTTL', lock) == -2 then
      local counter = keys[2 * i]
      if want ~= texts_want then
        top = now + want
        text, texts_want = string.format('%.0f', top), want
      end
      -- The token is settled before the lock is written. A type error or full memory shows here, and nothing is done.
      local old = try('SET', counter, text, 'KEEPTTL', 'GET')
      if type(old) == 'table' then
        answers[i] = old
      else
        local last = not old and 0 or find(old, '^[1-9]%d*$') and tonumber(old)
        if last and last < now then
          plain = true
          if not old then
            if ttl > 0 then try('PEXPIRE', counter, args[2]) end
          elseif ttl == 0 then
            try('PERSIST', counter)
          elseif now - last > now % (ttl * 125) then
            -- The first grant in each eighth of its time to live. None at all is Redisson's and stays for ever.
            local left = try('PTTL', counter)
            if left ~= -1 and left < ttl then try('PEXPIRE', counter, args[2]) end
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
        -- Only a user without the right to do this gets here. A lock must never be left without a TTL.
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
  if n == 1 then return answers[1] end
  return answers
end

