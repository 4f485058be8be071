-- lengthen(counter, lease, life): lets a fencing counter outlive a hold that was renewed to `lease`
-- ms. Shared by every script that renews; not a script by itself.
--
-- life  a counter is given a time to live of `lease` + `life` ms, which is a quarter of its
--       retention more than it needs. So that is done once in this quarter, and not each time.
--
-- A counter without a time to live is Redisson's. A hold is renewed whatever the server refuses
-- here.
local function lengthen(counter, lease, life)
  local left = redis.pcall('PTTL', counter)
  if type(left) == 'number' and left >= 0 and left < lease + life * 0.8 then
    redis.pcall('PEXPIRE', counter, lease + life)
  end
end

