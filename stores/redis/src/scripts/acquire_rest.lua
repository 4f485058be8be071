-- The end of acquire.lua: handles the locks and counters that are not in the plain state.
for _, one in ipairs(rest) do
  local i, item, lease, want = unpack(one)
  local ok, answer = pcall(take, now, {item}, lease, want, ARGV[2], '0')
  if not ok and type(answer) ~= 'table' then answer = redis.error_reply(answer) end
  answers[i] = answer
end
if n == 1 and not over then return answers[1] end
return answers
