-- lengthen(counter, lease, life): lets a fencing counter outlive a hold that was renewed to `lease`
-- ms. Shared by every script that renews. Not a script by itself.
--
-- life     the counter gets a TTL of `lease` + `life` ms, a quarter of its retention more than it
--          needs. So this is done once in that quarter, and not at each renewal.
--
-- A counter without a TTL belongs to Redisson. A hold is renewed whatever the server refuses here.
local function lengthen(counter, lease, life)
  local left = redis.pcall('PTTL', counter)
  if type(left) == 'number' and left >= 0 and left < lease + life * 0.8 then
    redis.pcall('PEXPIRE', counter, lease + life)
  end
end

