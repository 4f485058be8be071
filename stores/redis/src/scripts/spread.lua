-- What the scripts of stocks that are spread over slots share. Not a script by itself.
--
-- At the stock {n}:
--
--   HASH lock_stock:{n}    layout  spread          st  making, resizing or ready
--                          c       segments        m   segments that ever existed
--                          e       epoch           u   units of new segments while they are made
--
-- At each of 16 homes {n/h0} … {n/h15}; an operation's home follows from its id:
--
--   STRING lock_stock_record:{n/hk}:<operation>
--                          "<state> <kind> <quantity> <born> <version> <ends> <open> <k>:<units>
--                          …", the units wanted of the segments
--   ZSET lock_stock_open:{n/hk}
--                          operations that have to be looked at, by when (ms): those that are not
--                          decided or not carried out, and reservations
--   states                 P not decided, S sold, H held, C cancelled, E expired, B given back,
--                          N cancelled before it came, R restocked
--   kinds                  the aim: s sold, h held, r restocked
--
-- A reservation ends at <ends> (ms); while it is not decided, that is its duration. Versions count
-- up from the time at which the record was made, so that a record that is made anew is newer. A
-- record expires after the retention once it is settled and nothing of it is open.
--
-- At each segment {n/k}:
--
--   HASH lock_stock_part:{n/k}
--                          st  A active or D retired   e   epoch
--                          a   available               h   held
--                          s   sold                    i   initial
--                          r   restocked               f   largest token shown here
--                          t   taken by undecided operations over several segments
--                          c   how often units became available or were sent
--                          y   transfers and restocks
--                          ok  "<number> <units>" on the way to segment k
--                          xk  last number of these
--                          lk  last number that has come from segment k
--   HASH lock_stock_puts:{n/k}
--                          operation -> "<born> <version> <kind> <units>", what it has here
--   ZSET lock_stock_put_times:{n/k}
--                          the same operations, by when that was (ms)
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
