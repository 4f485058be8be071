-- Distributes units so that the segments have numbers as equal as possible. Not a script by itself.

-- Puts `more` units where there are fewest. `units[k + 1]`, the units of segment k, is
-- raised.
local function fill(units, more)
  local order, n = {}, #units
  for k = 1, n do order[k] = k end
  table.sort(order, function(a, b) return units[a] < units[b] or units[a] == units[b] and a < b end)
  local level, filled = units[order[1]], 0
  while filled < n do
    while filled < n and units[order[filled + 1]] == level do filled = filled + 1 end
    local up = filled < n and units[order[filled + 1]] - level or nil
    if up and up * filled <= more then
      more, level = more - up * filled, level + up
    else
      local each = math.floor(more / filled)
      local rest = more - each * filled
      for i = 1, filled do units[order[i]] = level + each + (i <= rest and 1 or 0) end
      return
    end
  end
end

-- Returns the units of the first n segments.
local function all(stock, n)
  local fields, units = {}, {}
  for k = 0, n - 1 do fields[k + 1] = 'a' .. k end
  for k, text in ipairs(call('HMGET', stock, unpack(fields))) do units[k] = tonumber(text or 0) end
  return units
end

-- Writes the segments' units, and adds the difference from `before` to what they account for.
local function put(stock, units, before)
  local fields, pairs = {}, {}
  for k = 1, #units do fields[k] = 'u' .. (k - 1) end
  for k, sum in ipairs(call('HMGET', stock, unpack(fields))) do
    local at = 4 * k
    pairs[at - 3], pairs[at - 2] = 'a' .. (k - 1), string.format('%.0f', units[k])
    pairs[at - 1], pairs[at] = fields[k], string.format('%.0f', tonumber(sum or 0) + units[k] - before[k])
  end
  return try('HSET', stock, unpack(pairs))
end
