-- Takes locks, each on its own, for requests that travel together.
--
-- KEYS     lock 1, counter 1, lock 2, counter 2, ...
-- ARGV     latest server time (us), counter time to live (ms; 0 = keep for ever),
--          then for each lock: owner, lease (ms), tokens wanted
-- Returns  for each lock what take() says of it alone, see grant.lua, or {2, now} when this arrived later than the latest
--          server time, or the error; for a single lock the bare answer, for several an array.
--
-- What Redisson sees: see grant.lua.
--
-- This part knows the plain state only, a free lock and a counter behind the server's clock, and does in six commands
-- what take() does in eight. It has no functions, since making one costs as much as a command. grant.lua and
-- acquire_rest.lua stand behind it for everything else.
local try, find = redis.pcall, string.find
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local late, ttl, n = now > tonumber(ARGV[1]), tonumber(ARGV[2]), #KEYS / 2
local answers, rest, want, top, text = {}, nil, nil, nil, nil

for i = 1, n do
  local lock, counter, owner, plain = KEYS[2 * i - 1], KEYS[2 * i], ARGV[3 * i], false
  if late then
    answers[i] = {2, now}
  else
    if try('PTTL', lock) == -2 then
      if want ~= ARGV[3 * i + 2] then
        want = ARGV[3 * i + 2]
        top = now + want
        text = string.format('%.0f', top)
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
            if ttl > 0 then try('PEXPIRE', counter, ttl) end
          elseif ttl == 0 then
            try('PERSIST', counter)
          elseif now - last > now % (ttl * 125) then
            -- The first grant in each eighth of its time to live. None at all is Redisson's and stays for ever.
            local left = try('PTTL', counter)
            if left ~= -1 and left < ttl then try('PEXPIRE', counter, ttl) end
          end
        else
          try('SET', counter, old, 'KEEPTTL')
        end
      end
    end
    if plain then
      local done = try('HSET', lock, owner, 1)
      if done == 1 then done = try('PEXPIRE', lock, ARGV[3 * i + 1]) end
      if done == 1 then
        answers[i] = top
      else
        -- Only a user without the right to do this gets here. A lock must never be left without a TTL.
        try('HDEL', lock, owner)
        answers[i] = done
      end
    elseif not answers[i] then
      rest = rest or {}
      rest[#rest + 1] = i
    end
  end
end
if not rest then
  if n == 1 then return answers[1] end
  return answers
end

