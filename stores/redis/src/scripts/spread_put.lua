-- Brings what an operation has of a segment to what is wanted. Follows spread.lua.
--
-- KEYS     the segment, its puts, their times
-- ARGV     latest server time (us), -, operation, born, version, kind (t, h, s, r), units, token
--          (0: none)
-- Returns  {2, now}: too late. {3, now}: foreign data. {4, now}: no such segment.
--          {5, now, available}: too few. {6, now, born}: a newer version, or record, has been here.
--          {7, now}: retired. {8, now}: a newer token has been here.
--          {1, now, epoch, retired}: it is as wanted.
local part, puts, times = KEYS[1], KEYS[2], KEYS[3]
local operation, born, version, kind, units, token = ARGV[3], ARGV[4], ARGV[5], ARGV[6], tonumber(ARGV[7]), tonumber(ARGV[8])
local names = {'st', 'e', 'a', 't', 'h', 's', 'r', 'f', 'c', 'y'}
local read = try('HMGET', part, unpack(names))
if read.err then return {3, now} end
if not read[1] then return {4, now} end
local has = {}
for i = 2, #names do
  has[names[i]] = tonumber(read[i] or 0)
  if not has[names[i]] then return {3, now} end
end
local retired = read[1] == 'D'
local entry = try('HGET', puts, operation)
if type(entry) == 'table' then return {3, now} end
local had_kind, had = kind, 0
if entry then
  local entry_born, entry_version, entry_kind, entry_units = match(entry, '^(%d+) (%d+) ([thsr]) (%d+)$')
  if not entry_born then return {3, now} end
  if entry_born == born then
    if tonumber(entry_version) > tonumber(version) then return {6, now, tonumber(entry_born)} end
    had_kind, had = entry_kind, tonumber(entry_units)
    if entry_version == version and had_kind == kind and had == units then return {1, now, has.e, retired and 1 or 0} end
  elseif tonumber(entry_born) > tonumber(born) then
    return {6, now, tonumber(entry_born)}
  end
end
if kind ~= 'r' and units > had then
  if retired then return {7, now} end
  if token > 0 and token < has.f then return {8, now} end
  if has.a < units - had then return {5, now, has.a} end
end

local function change(field, by) has[field] = has[field] + by end
if kind == 'r' then
  change('a', units - had)
  change('r', units - had)
  change('y', 1)
else
  change('a', had - units)
  change(had_kind, -had)
  change(kind, units)
end
if kind == 'r' or units < had then change('c', 1) end
if token > has.f then has.f = token end
-- Lets units come back when the server's memory is full: a script whose first command needs no
-- memory may go on. No operation has an empty name.
if units <= had then
  local may = try('ZREM', times, '')
  if type(may) == 'table' then return may end
end
-- Everything that can fail comes first: lack of memory or rights, foreign data. A needless entry in
-- the list does no harm.
local done = try('ZADD', times, whole(ms), operation)
if type(done) == 'table' then return done end
done = try('HSET', puts, operation, table.concat({born, version, kind, whole(units)}, ' '))
if type(done) == 'table' then return done end
local fields = {}
for _, field in ipairs({'a', 't', 'h', 's', 'r', 'f', 'c', 'y'}) do
  fields[#fields + 1], fields[#fields + 2] = field, whole(has[field])
end
call('HSET', part, unpack(fields))
return {1, now, has.e, retired and 1 or 0}
