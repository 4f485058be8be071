-- The end of acquire.lua: the locks and counters that are not in the plain state.
for _, i in ipairs(rest) do
  local item = {KEYS[2 * i - 1], KEYS[2 * i], ARGV[3 * i]}
  local ok, answer = pcall(take, now, {item}, ARGV[3 * i + 1], ARGV[3 * i + 2], ARGV[2], '0')
  if not ok and type(answer) ~= 'table' then answer = redis.error_reply(answer) end
  answers[i] = answer
end
if n == 1 then return answers[1] end
return answers
