---------------------------- MODULE Heartbeats -----------------------------
(***************************************************************************)
(* How long a manager may be sure of its session in ZooKeeper.             *)
(* Ephemeral.tla builds on the result.                                     *)
(*                                                                         *)
(* The leader ends a session that it has not heard of for the timeout.  A  *)
(* follower answers its clients.  It tells the leader of their sessions    *)
(* only when the leader pings it.  Each way of its connection to the       *)
(* leader keeps the order: pings and commits come down, answers to pings   *)
(* and requests go up.                                                     *)
(*                                                                         *)
(* A heartbeat is a write.  The leader executes it only if the session is  *)
(* alive.  That alone does not move the end of the session.                *)
(*                                                                         *)
(* A tick is the interval of the leader's pings: half a tick of ZooKeeper. *)
(***************************************************************************)
EXTENDS Integers, Sequences

CONSTANTS
  Timeouts,  \* the timeouts that servers may give, in ticks
  Least,     \* the least of them, as the manager knows it
  Apart,     \* ticks from the answer of a heartbeat to the send of the next one
  Margin,    \* ticks by which the manager's deadline is earlier
  Drift,     \* ticks by which the manager's clock may be late at its deadline
  Faults,    \* assumptions that do not hold: see README.md
  Broken     \* the rule that is left out, or "nothing"

ASSUME Faults \subseteq {"early-end"}

VARIABLES
  left,      \* ticks that the leader leaves the session, or Over
  created,   \* the timeout that the session was created with; a new leader begins with it
  link,      \* the manager's connection: to which server, the timeout that it gives
  path,      \* what the follower and the leader have not told each other yet
  stray,     \* timeouts of touches that connections of before may still cause
  beat,      \* the heartbeat that is under way
  counted,   \* ages of the last three answered heartbeats, from their send; the newest first
  since,     \* ticks since the last of them was answered
  mine       \* the timeout that the manager counts with

vars == <<left, created, link, path, stray, beat, counted, since, mine>>

Max(a, b) == IF a > b THEN a ELSE b
Min(a, b) == IF a < b THEN a ELSE b
Longest == CHOOSE t \in Timeouts : \A other \in Timeouts : other <= t
Old == Longest + Drift

Over == -1
IsAlive == left # Over

NoBeat == [is |-> "none", age |-> 0]

(* `touched`: the follower has heard of the session since its last answer to a ping.         *)
(* `ping`, `later`: a ping is on its way down, before the commit of the heartbeat or after.  *)
(* `touch`: an answer to a ping is on its way up, and names the session.                     *)
Quiet == [touched |-> FALSE, ping |-> FALSE, later |-> FALSE, touch |-> FALSE]

(* The manager is sure of its session from the send of the last heartbeat but two.  While a *)
(* request to connect is not answered, the server may have given any timeout.               *)
Base == counted[CASE Broken = "last" -> 1 [] Broken = "last-but-one" -> 2 [] OTHER -> 3]
Counts == IF link.is # "up" /\ Broken # "hears-first" THEN Min(mine, Least) ELSE mine
IsSure == Base < Counts + Drift - Margin

----------------------------------------------------------------------------
(* What the manager does *)

(* A new session.  Its creation is a write, and the leader's timer begins with it: it counts *)
(* as three heartbeats.                                                                      *)
Open ==
  /\ \E t \in Timeouts, server \in {"leader", "follower"} :
       /\ left' = t /\ created' = t /\ mine' = t
       /\ link' = [to |-> server, is |-> "up", gives |-> t]
  /\ path' = Quiet /\ stray' = {} /\ beat' = NoBeat
  /\ counted' = <<0, 0, 0>> /\ since' = 0

(* A heartbeat that is too early does not count.  It is left out here. *)
Send ==
  /\ link.is = "up" /\ beat.is = "none"
  /\ \/ since >= Apart
     \/ Broken = "close"
     \/ Broken = "from-send" /\ counted[1] >= Apart
  /\ beat' = [is |-> "sent", age |-> 0]
  /\ UNCHANGED <<left, created, link, path, stray, counted, since, mine>>

(* The answer comes after the commit, and after the pings before that. *)
Hear ==
  /\ beat.is = "done" /\ ~path.ping
  /\ counted' = <<IF Broken = "from-answer" THEN 0 ELSE beat.age, counted[1], counted[2]>>
  /\ since' = 0 /\ beat' = NoBeat
  /\ path' = [path EXCEPT !.ping = path.later, !.later = FALSE]
  /\ UNCHANGED <<left, created, link, stray, mine>>

(* The connection is lost, and the manager asks a server to take the session over.  What was *)
(* under way may still reach the leader.  So may a request to connect that is given up; then *)
(* nobody knows which timeout it was given.                                                  *)
Connect ==
  /\ \E t \in Timeouts, server \in {"leader", "follower", "deposed"} :
       link' = [to |-> server, is |-> "asked", gives |-> t]
  /\ stray' = IF link.to = "deposed" THEN stray ELSE stray \union {link.gives}
  /\ mine' = IF link.is # "up" /\ Broken # "forgets" THEN Min(mine, Least) ELSE mine
  /\ path' = Quiet /\ beat' = NoBeat
  /\ UNCHANGED <<left, created, counted, since>>

(* The server's answer names a timeout.  Only a shorter one is taken. *)
HearConnected ==
  /\ link.is = "given"
  /\ link' = [link EXCEPT !.is = "up"]
  /\ mine' = CASE Broken = "keeps-timeout" -> mine
               [] Broken = "lengthens" -> link.gives
               [] OTHER -> Min(mine, link.gives)
  /\ UNCHANGED <<left, created, path, stray, beat, counted, since>>

----------------------------------------------------------------------------
(* What the servers do *)

(* The leader hears of the session.  The new end may be earlier than the old one. *)
Touched(t) == IF IsAlive THEN t ELSE Over

(* A server takes a session over after it has asked the leader, who hears of it by that.  A   *)
(* deposed leader asks nobody.  Some servers make a new session if the old one is over, and   *)
(* say so only by its number.                                                                 *)
ExecuteConnect ==
  /\ link.is = "asked"
  /\ IsAlive \/ link.to = "deposed" \/ Broken = "replaced"
  /\ link' = [link EXCEPT !.is = "given"]
  /\ left' = IF link.to = "deposed" THEN left ELSE Touched(link.gives)
  /\ UNCHANGED <<created, path, stray, beat, counted, since, mine>>

(* A write needs the leader, a majority, and a session that is alive.  It comes after the     *)
(* answers to pings that went up before it.  A leader hears of its own clients at once.       *)
(* A `sync` is answered by a deposed leader, too.                                             *)
ExecuteBeat ==
  /\ beat.is = "sent"
  /\ CASE link.to = "leader" -> /\ IsAlive \/ Broken = "replaced"
                                /\ left' = Touched(link.gives) /\ path' = path
       [] link.to = "follower" -> /\ IsAlive \/ Broken = "replaced"
                                  /\ ~path.touch
                                  /\ path' = [path EXCEPT !.touched = TRUE]
                                  /\ left' = left
       [] OTHER -> Broken = "sync" /\ UNCHANGED <<left, path>>
  /\ beat' = [beat EXCEPT !.is = "done"]
  /\ UNCHANGED <<created, link, stray, counted, since, mine>>

(* The follower answers a ping. *)
AnswerPing ==
  /\ path.ping
  /\ path' = [path EXCEPT !.ping = FALSE, !.touched = FALSE, !.touch = @ \/ path.touched]
  /\ UNCHANGED <<left, created, link, stray, beat, counted, since, mine>>

HearPing ==
  /\ path.touch
  /\ left' = Touched(link.gives)
  /\ path' = [path EXCEPT !.touch = FALSE]
  /\ UNCHANGED <<created, link, stray, beat, counted, since, mine>>

(* The leader hears late of a connection of before. *)
HearStray == \E t \in stray :
  /\ left' = Touched(t)
  /\ UNCHANGED <<created, link, path, stray, beat, counted, since, mine>>

(* There is a new leader.  It gives each session its full time.  The servers that the manager *)
(* is connected to have not noticed.                                                          *)
Elect ==
  /\ left' = Touched(created)
  /\ link' = [link EXCEPT !.to = "deposed"]
  /\ path' = Quiet
  /\ UNCHANGED <<created, stray, beat, counted, since, mine>>

(* The leader ends the session.  It may be late. *)
Expire ==
  /\ left = 0 \/ ("early-end" \in Faults /\ IsAlive)
  /\ left' = Over
  /\ UNCHANGED <<created, link, path, stray, beat, counted, since, mine>>

(* The leader pings the follower.  One ping stands for several with no commit between them: *)
(* only the last has to be answered before the commit.                                      *)
Tick ==
  /\ left' = IF IsAlive THEN Max(left - 1, 0) ELSE Over
  /\ beat' = IF beat.is = "none" THEN beat ELSE [beat EXCEPT !.age = Min(@ + 1, Old)]
  /\ counted' = [i \in 1..3 |-> Min(counted[i] + 1, Old)]
  /\ since' = Min(since + 1, Apart)
  /\ path' = IF link.to # "follower" \/ link.is # "up" THEN path
             ELSE IF beat.is = "done" THEN [path EXCEPT !.later = TRUE]
             ELSE [path EXCEPT !.ping = TRUE]
  /\ UNCHANGED <<created, link, stray, mine>>

----------------------------------------------------------------------------

Init ==
  /\ \E t \in Timeouts, server \in {"leader", "follower"} :
       /\ left = t /\ created = t /\ mine = t
       /\ link = [to |-> server, is |-> "up", gives |-> t]
  /\ path = Quiet /\ stray = {} /\ beat = NoBeat
  /\ counted = <<0, 0, 0>> /\ since = 0

Next ==
  \/ Open \/ Send \/ Hear \/ Connect \/ HearConnected
  \/ ExecuteConnect \/ ExecuteBeat \/ AnswerPing \/ HearPing \/ HearStray \/ Elect \/ Expire
  \/ Tick

Spec == Init /\ [][Next]_vars

----------------------------------------------------------------------------

(* A session of which its manager is sure has not ended. *)
Alive == IsSure => IsAlive
=============================================================================
