-- What the scripts of stocks that are spread over slots have in common; not a script by itself.
--
-- At the stock {n}: HASH lock_stock:{n}: layout spread, c segments, m of them ever, e epoch, st
-- making, resizing or ready, u what the segments are made with, while that is done.
--
-- At each of 16 homes {n/h0} … {n/h15}, which an operation has by its id, whatever becomes of the
-- segments: STRING lock_stock_record:{n/hk}:<operation>: "<state> <kind> <quantity> <born>
-- <version> <ends> <open> <k>:<units> …", what is wanted of the segments. A reservation ends at
-- that time (ms); as long as it is not decided, that is how long it will last. Versions count up
-- from the time at which the record was made, so that one that is made anew is newer. It expires
-- with the retention once it is settled and nothing of it is open. ZSET lock_stock_open:{n/hk}: the
-- operations that somebody has to look at, by when (ms): those that are not decided or not carried
-- out, and reservations. States: P not decided, S sold, H held, C cancelled, E expired, B given
-- back, N cancelled before it came, R restocked. Kinds: what it is meant to be: s sold, h held, r
-- restocked.
--
-- At each segment {n/k}: HASH lock_stock_part:{n/k}: st A active or D retired, e epoch, a
-- available, h held, s sold, t taken by operations over several segments that are not decided, i
-- initial, r restocked, f the largest token shown here, c how often there came to be more here, y
-- transfers and restocks. ok: "<number> <units>" on the way to segment k, xk the last number of
-- these, lk the last number that has come from segment k. HASH lock_stock_puts:{n/k}: of each
-- operation "<born> <version> <kind> <units>", what it has of this segment. ZSET
-- lock_stock_put_times:{n/k}: the same operations, by when that was (ms).
local try, call, match = redis.pcall, redis.call, string.match

local function server_time()
  local time = call('TIME')
  return time[1] * 1000000 + time[2]
end

local now = server_time()
if now > tonumber(ARGV[1]) then return {2, now} end
local ms, how = math.floor(now / 1000), ARGV[2]

local function whole(number)
  return string.format('%.0f', number)
end
