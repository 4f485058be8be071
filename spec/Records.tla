------------------------------ MODULE Records ------------------------------
(***************************************************************************)
(* One key as one row of a database that only compares and swaps: how a    *)
(* mutex is acquired, renewed, released and withdrawn, and the row swept.  *)
(*                                                                         *)
(* A statement waits for the row's lock, at most for `Limit`.  Then it     *)
(* reads the clock and judges the row.  It has the lock until it commits   *)
(* or is rolled back, which may take any time.  A statement that inserts   *)
(* the row can't read the clock again: it has done so when it began.       *)
(*                                                                         *)
(* Messages and times are those of Mutex.tla; the clock is the database's. *)
(***************************************************************************)
EXTENDS Integers, FiniteSets, TLC

CONSTANTS
  Managers,  \* the processes
  Nobody,    \* the owner of a free key
  Owners,    \* names of the owners of a manager; a name is used again when nothing refers to it
  Lease,     \* ticks from a grant to its end, by the database's clock
  Leases,    \* the leases that a renewal may ask for
  Margin,    \* ticks by which a manager's deadline is earlier
  Drift,     \* ticks by which a manager's clock may be late at its deadline
  Fresh,     \* ticks from the send of an acquire in which it is valid
  Limit,     \* ticks for which a statement may wait for the row's lock
  PerTick,   \* tokens for which the database's clock has room in a tick
  Faults,    \* assumptions that do not hold: see README.md
  Broken     \* the rule that is left out, or "nothing"

ASSUME /\ Lease \in Leases
       /\ Faults \subseteq {"flush", "failover", "clock-behind", "back"}

VARIABLES
  row,       \* its version and owner, the ticks that are left of the lease, and the last token
  standby,   \* the row as a standby has heard of it
  locked,    \* the statement that has the row's lock: its answer, and the row that it will commit
  granted,   \* the largest token of all grants, as seen from the clock
  net,       \* requests, statements that wait for the lock, and answers
  state,     \* of each manager: what it does, as which owner, a timer, and the version it has seen
  ended,     \* owners whose withdrawal is settled, or whose release is done
  alone,     \* ticks in which nobody wanted the key, as long as it may be taken
  wrong      \* what has happened that must not: "token", "robbed"

vars == <<row, standby, locked, granted, net, state, ended, alone, wrong>>

Alike == Permutations(Managers)
Max(a, b) == IF a > b THEN a ELSE b
Min(a, b) == IF a < b THEN a ELSE b

(* What a change may name in place of a version: none, or one that never comes back. *)
Blind == -1
Gone == -2

Longest == CHOOSE l \in Leases : \A other \in Leases : l >= other

(* Ticks by which the clock may be stepped back.  What is over for longer stays over. *)
Back == IF "back" \in Faults THEN Longest ELSE 0
Past == -Back

(* The token of `ago` ticks ago. *)
Clock(ago) == 1 - ago * PerTick
LongAgo == Clock(Limit) - 1
Highest == Clock(-Back) + PerTick - 1

Absent == [version |-> 0, owner |-> Nobody, left |-> Past, token |-> LongAgo]
Idle == [does |-> "idle", as |-> Nobody, timer |-> 0, sees |-> Gone]

(* For how long a manager believes in its hold after the send of the request. *)
Valid(lease) == lease + Drift - Margin
IsUseful(r) == r.age < Valid(r.lease)

Does(m, what, o) == state[m].does = what /\ state[m].as = o

(* Kinds of messages:                                                                        *)
(*   acquire, renew, release, withdraw                                                       *)
(*   begun               an acquire that has read the clock `ago` ticks ago, and has no lock *)
(*   granted, renewed    answers                                                             *)
(* `age` counts from the send.  `sees` is the version that a change names or an answer tells.  *)
Message(kind, o, age, sees) ==
  [kind |-> kind, owner |-> o, age |-> age, ago |-> 0, sees |-> sees, lease |-> Lease]

IsInTime(r) == r.age < Fresh \/ Broken = "no-latest"
IsSettled(r) == r.age >= Fresh + (IF Broken = "no-limit" THEN 0 ELSE Limit)
IsAsked(o, all) == \E r \in all : r.kind \in {"acquire", "begun"} /\ r.owner = o

(* Messages that can have no effect any more are dropped, so that they do not make more states. *)
Matters(r, all) ==
  LET s == state'[r.owner.m]
      holds == s.does = "holds" /\ s.as = r.owner
      mayHold == \/ row'.owner = r.owner \/ standby'.owner = r.owner
                 \/ \E l \in locked' : l.by.owner = r.owner
                 \/ IsAsked(r.owner, all) \/ Broken = "no-owner-check"
  IN CASE r.kind = "acquire" -> (r.age < Fresh + Back \/ IsInTime(r)) /\ r.sees # Gone
       [] r.kind = "begun" -> r.ago <= Limit
       [] r.kind = "granted" -> s.does = "asks" /\ s.as = r.owner /\ IsUseful(r)
       [] r.kind = "renewed" -> holds /\ IsUseful(r)
       [] r.kind = "renew" -> mayHold /\ (r.sees # Gone \/ holds)
       [] r.kind = "withdraw" -> mayHold \/ ~IsSettled(r)
       [] OTHER -> mayHold

Ends(all, owners) ==
  /\ net' = {r \in all : Matters(r, all)}
  /\ ended' = {o \in owners : /\ \/ row'.owner = o \/ \E r \in net' : r.owner = o
                                 \/ \E l \in locked' : l.by.owner = o
                              /\ state'[o.m].as # o}
Under(all) == Ends(all, ended)

(* Versions are random.  The row's is gone when the row changes, unless the standby has it too. *)
(* The model then uses its number again.  `told` are answers that tell the new version.         *)
Lost == IF row.version = standby.version \/ Broken = "counts" THEN 0 ELSE row.version
Without(x) == IF x.sees = Lost THEN [x EXCEPT !.sees = Gone] ELSE x
New == CASE Broken = "counts" -> row.version + 1
         [] standby.version = 1 -> 2
         [] OTHER -> 1

Changes(all, told, owners) ==
  /\ state' = [m \in Managers |-> Without(state[m])]
  /\ Ends({Without(r) : r \in all} \union told, owners)
Write(new, all, told, owners) == row' = [new EXCEPT !.version = New] /\ Changes(all, told, owners)
Delete == row' = Absent /\ Changes(net, {}, ended)

----------------------------------------------------------------------------
(* What the managers do *)

Names(m) == {[m |-> m, n |-> n] : n \in Owners}
IsUsed(o) == \/ row.owner = o \/ standby.owner = o \/ \E l \in locked : l.by.owner = o
             \/ \E r \in net : r.owner = o
Unused(m) == {o \in Names(m) : ~IsUsed(o)}

(* Each request has an owner that was never used before. *)
Ask(m) ==
  /\ state[m].does = "idle" /\ Unused(m) # {}
  /\ LET me == CHOOSE o \in Unused(m) : \A other \in Unused(m) : o.n <= other.n
     IN /\ state' = [state EXCEPT ![m] = [Idle EXCEPT !.does = "asks", !.as = me]]
        /\ UNCHANGED <<row, standby, locked, granted, wrong>>
        /\ Under(net \union {Message("acquire", me, 0, Blind)})
  /\ alone' = 0

(* The same request once more: no answer has come, or one with a row whose lease is over.  The *)
(* change names the version of that row.                                                       *)
AskAgain(m) ==
  /\ state[m].does = "asks"
  /\ state' = [state EXCEPT ![m].timer = 0]
  /\ UNCHANGED <<row, standby, locked, granted, alone, wrong>>
  /\ \E sees \in {Blind} \union (IF row = Absent \/ row.left > 0 THEN {} ELSE {row.version}) :
       Under(net \union {Message("acquire", state[m].as, 0, sees)})

Renew(m, lease) ==
  /\ state[m].does = "holds" /\ state[m].timer > 0
  /\ UNCHANGED <<row, standby, locked, granted, state, alone, wrong>>
  /\ Under({r \in net : ~(r.kind = "renew" /\ r.owner = state[m].as /\ r.lease = lease)}
           \union {[Message("renew", state[m].as, 0, state[m].sees) EXCEPT !.lease = lease]})

(* A guard is released, also one that was lost. *)
Release(m) ==
  /\ state[m].does = "holds"
  /\ state' = [state EXCEPT ![m] = Idle]
  /\ UNCHANGED <<row, standby, locked, granted, alone, wrong>>
  /\ Under(net \union {Message("release", state[m].as, 0, state[m].sees)})

(* No answer is wanted any more.  The withdrawal has the age of the last acquire. *)
Withdraw(m) ==
  /\ state[m].does = "asks"
  /\ state' = [state EXCEPT ![m] = Idle]
  /\ UNCHANGED <<row, standby, locked, granted, alone, wrong>>
  /\ Under(net \union {Message("withdraw", state[m].as, state[m].timer, Blind)})

(* A process ends without a word, or its request was refused. *)
Leave(m) ==
  /\ state[m].does # "idle"
  /\ state' = [state EXCEPT ![m] = Idle]
  /\ UNCHANGED <<row, standby, locked, granted, alone, wrong>>
  /\ Under(net)

(* An answer arrives.  Validity counts from the send. *)
Hear == \E r \in net :
  LET m == r.owner.m
      left == Valid(r.lease) - r.age
  IN /\ \/ r.kind = "granted" /\ Does(m, "asks", r.owner)
        \/ r.kind = "renewed" /\ Does(m, "holds", r.owner) /\ state[m].timer > 0
     /\ left > 0
     /\ state' = [state EXCEPT ![m] =
                   [does |-> "holds", as |-> r.owner,
                    timer |-> IF r.kind = "granted" THEN left ELSE Max(@.timer, left),
                    sees |-> IF r.sees = Gone THEN @.sees ELSE r.sees]]
     /\ UNCHANGED <<row, standby, locked, granted, alone, wrong>>
     /\ Under(net \ {r})

----------------------------------------------------------------------------
(* What the database does *)

IsNamed(r) == row # Absent /\ r.sees = row.version
IsMine(r) == row.owner = r.owner \/ (Broken = "no-owner-check" /\ row # Absent)
Robs(r) == row.left > 0 /\ row.owner # r.owner

(* A blind acquire begins.  It waits for the row's lock, or for another that inserts the row. *)
Begin == \E r \in net :
  /\ r.kind = "acquire" /\ r.sees = Blind /\ IsInTime(r)
  /\ Broken = "judges-first" => row.left <= 0
  /\ UNCHANGED <<row, standby, locked, granted, state, alone, wrong>>
  /\ Under(net \union {[r EXCEPT !.kind = "begun"]})

(* It has the lock.  If there is a row, it reads the clock again, and takes the key if the      *)
(* lease is over.  A change that names a version is not valid before the end that it has seen.  *)
(* A step under the row's lock does the same in several statements.                             *)
JudgeAcquire == \E r \in net :
  LET isOld == r.kind = "begun" /\ (row = Absent \/ Broken = "clock-first")
      ago == IF isOld THEN r.ago ELSE 0
      isOver == row = Absent \/ row.left + ago <= 0
      token == Max(row.token + 1, Clock(ago))
      answer == [r EXCEPT !.kind = "granted", !.ago = 0]
      taken == [row EXCEPT !.owner = r.owner, !.left = Lease - ago, !.token = token]
  IN /\ locked = {}
     /\ \/ r.kind = "begun" /\ (isOver \/ Broken = "judges-first")
        \/ /\ r.kind = "acquire" /\ IsNamed(r)
           /\ isOver \/ Broken = "counts" \/ Broken = "no-interval"
     /\ isOld \/ IsInTime(r)
     /\ token <= Highest
     /\ locked' = {[by |-> answer, row |-> taken]}
     /\ wrong' = wrong \union (IF Robs(r) THEN {"robbed"} ELSE {})
                       \union (IF token > granted THEN {} ELSE {"token"})
     /\ UNCHANGED <<row, standby, granted, state, alone>>
     /\ Under(IF r.kind = "begun" THEN net \ {r} ELSE net)

(* It finds its own record, from an earlier copy.  What is left of that is the grant. *)
FindOwn == \E r \in net :
  LET left == IF Broken = "found-is-new" THEN Lease ELSE Min(row.left, Lease)
  IN /\ r.kind = "begun" /\ locked = {} /\ row.owner = r.owner /\ row.left > 0
     /\ UNCHANGED <<row, standby, locked, granted, state, alone, wrong>>
     /\ Under((net \ {r}) \union
          {[r EXCEPT !.kind = "granted", !.ago = 0, !.sees = row.version, !.lease = left]})

(* A renewal is valid until the end of the hold that it has seen. *)
JudgeRenewal == \E r \in net :
  LET answer == [r EXCEPT !.kind = "renewed"]
      renewed == [row EXCEPT !.left = Max(@, r.lease)]
  IN /\ r.kind = "renew" /\ locked = {} /\ IsNamed(r) /\ IsMine(r)
     /\ row.left > 0 \/ Broken = "revives"
     /\ locked' = {[by |-> answer, row |-> renewed]}
     /\ wrong' = IF Robs(r) THEN wrong \union {"robbed"} ELSE wrong
     /\ UNCHANGED <<row, standby, granted, state, alone>>
     /\ Under(net \ {r})

Commit == \E l \in locked :
  /\ locked' = {}
  /\ granted' = IF l.by.kind = "granted" THEN Max(granted, l.row.token) ELSE granted
  /\ UNCHANGED <<standby, alone, wrong>>
  /\ Write(l.row, net, {[l.by EXCEPT !.sees = New]}, ended)

RollBack ==
  /\ locked # {} /\ locked' = {}
  /\ UNCHANGED <<row, standby, granted, state, alone, wrong>>
  /\ Under(net)

(* A renewal or a release meets another version of its own record, after an earlier renewal or  *)
(* the withdrawal of somebody else.  It is sent again, and names that version.                  *)
Conflict == \E r \in net :
  /\ \/ r.kind = "renew" /\ Does(r.owner.m, "holds", r.owner)
     \/ r.kind = "release" /\ Broken # "conflict-is-done"
  /\ locked = {} /\ ~IsNamed(r) /\ IsMine(r)
  /\ UNCHANGED <<row, standby, locked, granted, state, alone, wrong>>
  /\ Under((net \ {r}) \union
       {IF Broken = "mine-is-done" /\ r.kind = "renew" THEN [r EXCEPT !.kind = "renewed"]
        ELSE [r EXCEPT !.sees = row.version]})

Freed == [row EXCEPT !.owner = Nobody, !.left = Past]

(* A release is also done if the record is not its own.  A late acquire may come after it. *)
ExecuteRelease == \E r \in net :
  LET ends == IsNamed(r) /\ IsMine(r)
      done == ended \union (IF IsAsked(r.owner, net) THEN {} ELSE {r.owner})
  IN /\ r.kind = "release" /\ locked = {}
     /\ ends \/ ~IsMine(r) \/ Broken = "conflict-is-done"
     /\ wrong' = IF ends /\ Robs(r) THEN wrong \union {"robbed"} ELSE wrong
     /\ UNCHANGED <<standby, locked, granted, alone>>
     /\ IF ends THEN Write(Freed, net \ {r}, {}, done)
        ELSE UNCHANGED <<row, state>> /\ Ends(net \ {r}, done)

(* An upsert by name alone.  It waits for the lock, and writes the row whatever there is. *)
ExecuteWithdraw == \E r \in net :
  LET isMine == row.owner = r.owner
      rest == IF IsSettled(r) THEN net \ {r} ELSE net
      done == IF IsSettled(r) THEN ended \union {r.owner} ELSE ended
  IN /\ r.kind = "withdraw"
     /\ UNCHANGED <<standby, locked, granted, alone, wrong>>
     /\ IF Broken = "no-wait" /\ ~isMine
        THEN UNCHANGED <<row, state>> /\ Ends(rest, done)
        ELSE locked = {} /\ Write(IF isMine THEN Freed ELSE row, rest, {}, done)

(* The row goes when each statement that has begun would get a larger token. *)
Sweep ==
  LET below == CASE Broken = "sweeps-all" -> Highest + 1
                 [] Broken = "sweeps-below-clock" -> Clock(0)
                 [] OTHER -> Clock(Limit)
  IN /\ locked = {} /\ row # Absent /\ row.left <= 0 /\ row.token < below
     /\ UNCHANGED <<standby, locked, granted, alone, wrong>>
     /\ Delete

----------------------------------------------------------------------------
(* Time, and what guarantees.md assumes not to happen *)

(* Nobody wants a key that may be taken or prolonged. *)
IsAlone ==
  /\ \A m \in Managers : state[m] = Idle
  /\ row.left > 0 \/ locked # {} \/ \E r \in net : r.kind \in {"acquire", "begun", "renew"}

(* An acquire is valid for `Fresh`, and a renewal until the end of the hold. *)
Bound == Max(Fresh, Longest) + Longest

Older(r) ==
  LET limit == CASE r.kind \in {"acquire", "begun", "granted"} ->
                      Max(Fresh + Back + Limit, Valid(Lease))
                 [] r.kind \in {"renew", "renewed"} -> Valid(r.lease)
                 [] r.kind = "withdraw" -> Fresh + Limit
                 [] OTHER -> 0
  IN [r EXCEPT !.age = Min(@ + 1, limit), !.ago = IF r.kind = "begun" THEN @ + 1 ELSE 0]

(* A record whose lease is over is as good as none. *)
Passed(x) ==
  [x EXCEPT !.left = Max(@ - 1, Past), !.token = Max(@ - PerTick, LongAgo),
            !.owner = IF x.left - 1 <= Past /\ Broken # "revives" THEN Nobody ELSE @]

Tick ==
  /\ row' = Passed(row) /\ standby' = Passed(standby)
  /\ locked' = {[by |-> Older(l.by), row |-> Passed(l.row)] : l \in locked}
  /\ granted' = Max(granted - PerTick, LongAgo)
  /\ state' = [m \in Managers |->
                CASE state[m].does = "asks" -> [state[m] EXCEPT !.timer = Min(@ + 1, Fresh + Limit)]
                  [] state[m].does = "holds" -> [state[m] EXCEPT !.timer = Max(@ - 1, 0)]
                  [] OTHER -> Idle]
  /\ alone' = IF IsAlone THEN Min(alone + 1, Bound) ELSE 0
  /\ UNCHANGED wrong
  /\ Under({Older(r) : r \in net})

(* The clock is stepped back.  Leases last for longer, and late requests are in time again. *)
StepBack ==
  LET later(x) == IF x = Absent THEN x
                  ELSE [x EXCEPT !.left = IF x.owner = Nobody THEN @ ELSE @ + Back,
                                 !.token = Min(@ + Back * PerTick, Highest)]
      younger(age) == Max(age - Back, 0)
  IN /\ "back" \in Faults
     /\ row.left <= Longest /\ granted <= PerTick
     /\ \A l \in locked : l.row.left <= Longest
     /\ \A r \in net : r.ago >= 0
     /\ row' = later(row) /\ locked' = {[l EXCEPT !.row = later(@)] : l \in locked}
     /\ granted' = granted + Back * PerTick
     /\ state' = [m \in Managers |->
                   [state[m] EXCEPT !.timer = IF state[m].does = "asks" THEN younger(@) ELSE @]]
     /\ UNCHANGED <<standby, alone, wrong>>
     /\ Under({CASE r.kind = "begun" -> [r EXCEPT !.ago = @ - Back]
                 [] r.kind \in {"acquire", "withdraw"} -> [r EXCEPT !.age = younger(@)]
                 [] OTHER -> r : r \in net})

(* After a loss the clock must not be behind the highest token. *)
IsAhead == granted <= 0 \/ "clock-behind" \in Faults

(* The table is truncated, which waits for the statements that have begun. *)
Flush ==
  /\ "flush" \in Faults /\ IsAhead
  /\ locked = {} /\ ~\E r \in net : r.kind = "begun"
  /\ UNCHANGED <<standby, locked, granted, alone, wrong>>
  /\ Delete

(* The standby hears of what was committed.  Its old version is gone. *)
Replicate ==
  LET heard(x) == CASE x.sees < 0 -> x
                    [] x.sees = row.version -> [x EXCEPT !.sees = 1]
                    [] OTHER -> [x EXCEPT !.sees = Gone]
  IN /\ "failover" \in Faults /\ standby # row
     /\ row' = [row EXCEPT !.version = Min(@, 1)] /\ standby' = row'
     /\ state' = [m \in Managers |-> heard(state[m])]
     /\ UNCHANGED <<locked, granted, alone, wrong>>
     /\ Under({heard(r) : r \in net})

(* The standby takes over.  What it brings back begins anew, for P5. *)
Failover ==
  /\ "failover" \in Faults /\ IsAhead
  /\ row' = standby /\ locked' = {} /\ alone' = 0
  /\ UNCHANGED <<standby, granted, wrong>>
  /\ Changes({r \in net : r.kind # "begun"}, {}, ended \ {standby.owner})

----------------------------------------------------------------------------

Init ==
  /\ row = Absent /\ standby = Absent /\ locked = {} /\ granted = LongAgo
  /\ net = {} /\ state = [m \in Managers |-> Idle]
  /\ ended = {} /\ alone = 0 /\ wrong = {}

Next ==
  \/ Tick \/ StepBack \/ Flush \/ Replicate \/ Failover
  \/ \E m \in Managers : \/ Ask(m) \/ AskAgain(m) \/ Release(m) \/ Withdraw(m) \/ Leave(m)
                         \/ \E lease \in Leases : Renew(m, lease)
  \/ Hear \/ Begin \/ JudgeAcquire \/ FindOwn \/ JudgeRenewal \/ Commit \/ RollBack \/ Conflict
  \/ ExecuteRelease \/ ExecuteWithdraw \/ Sweep

Spec == Init /\ [][Next]_vars

----------------------------------------------------------------------------

Believes(m) == state[m].does = "holds" /\ state[m].timer > 0

(* P1 Exclusion: two managers never believe at once that they have the key. *)
P1 == \A m, o \in Managers : Believes(m) /\ Believes(o) => m = o

(* P2 Fencing tokens: each grant has a larger token than all before it. *)
P2 == "token" \notin wrong

(* P4 Nobody else's lock: no call touches the hold of another owner. *)
P4 == "robbed" \notin wrong

(* P5 Cancellation: nothing of a request is held after Settled, or after its release if no copy *)
(* of its acquire is under way.  A key that nobody wants is free one lease after the last       *)
(* moment at which a request is valid.                                                          *)
P5 == row.left > 0 => row.owner \notin ended /\ alone < Bound
=============================================================================
