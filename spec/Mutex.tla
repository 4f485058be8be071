------------------------------- MODULE Mutex -------------------------------
(***************************************************************************)
(* One key on one server, in the hash layout of stores/redis: how it is    *)
(* acquired, renewed, released and withdrawn.                              *)
(*                                                                         *)
(* There is no clock to run out: every time is a timer that a tick moves,  *)
(* so TLC looks at runs of any length.  A message may be executed late,    *)
(* never, or more than once, and its answer may come late or never.        *)
(*                                                                         *)
(* The invariants have the names of docs/book/src/guarantees.md.           *)
(***************************************************************************)
EXTENDS Integers, FiniteSets, TLC

CONSTANTS
  Managers,  \* the processes
  Nobody,    \* the owner of a free key
  Owners,    \* names of the owners of a manager; a name is used again when nothing refers to it
  Lease,     \* ticks from a grant to its end, by the server's clock
  Leases,    \* the leases that a renewal may ask for
  Margin,    \* ticks by which a manager's deadline is earlier
  Drift,     \* ticks by which a manager's clock may be late at its deadline
  Fresh,     \* ticks from the send of an acquire in which the server executes it
  PerTick,   \* tokens for which the server's clock has room in a tick
  Faults,    \* assumptions that do not hold: see README.md
  Broken     \* the rule that is left out, or "nothing"

ASSUME /\ Lease \in Leases
       /\ Faults \subseteq {"vanish", "flush", "clock-behind", "late-renewal"}

VARIABLES
  lock,      \* its owner, and the ticks that are left of its lease
  counter,   \* the last token, as seen from the server's clock: 1 is a token just ahead of it
  granted,   \* the largest token of all grants, in the same way
  net,       \* requests and answers under way: kind, owner, ticks since the send, lease
  state,     \* of each manager: what it does, as which owner, and a timer
  settled,   \* owners whose withdrawal was answered with Settled
  alone,     \* ticks in which nobody wanted the key, as long as it may be taken
  wrong      \* what has happened that must not: "token", "robbed"

vars == <<lock, counter, granted, net, state, settled, alone, wrong>>

Alike == Permutations(Managers)
Max(a, b) == IF a > b THEN a ELSE b
Min(a, b) == IF a < b THEN a ELSE b

Free == [owner |-> Nobody, left |-> 0]
Idle == [does |-> "idle", as |-> Nobody, timer |-> 0]
LongAgo == -PerTick

(* For how long a manager believes in its hold after the send of the request, by the server's clock. *)
Valid(lease) == lease + Drift - Margin
IsUseful(r) == r.age < Valid(r.lease) \/ Broken = "from-answer"
Longest == CHOOSE l \in Leases : \A other \in Leases : l >= other

Does(m, what, o) == state[m].does = what /\ state[m].as = o
Message(kind, o, age) == [kind |-> kind, owner |-> o, age |-> age, lease |-> Lease]
Answer(r, kind) == [r EXCEPT !.kind = kind]

(* Messages that can have no effect any more are dropped, so that they do not make more states. *)
Matters(r, all) ==
  LET s == state'[r.owner.m]
      mayHold == lock'.owner = r.owner
                 \/ \E a \in all : a.kind = "acquire" /\ a.owner = r.owner
                                   /\ (a.age < Fresh \/ Broken = "no-latest")
  IN CASE r.kind = "acquire" -> r.age < Fresh \/ Broken = "no-latest"
       [] r.kind = "granted" -> s.does = "asks" /\ s.as = r.owner /\ IsUseful(r)
       [] r.kind = "renewed" -> s.does = "holds" /\ s.as = r.owner /\ IsUseful(r)
       [] r.kind = "renew" -> mayHold \/ Broken = "blind-renewal"
       [] OTHER -> mayHold \/ Broken = "no-owner-check"

Under(all) ==
  /\ net' = {r \in all : Matters(r, all)}
  /\ settled' = {o \in settled : /\ lock'.owner = o \/ \E r \in net' : r.owner = o
                                 /\ state'[o.m].as # o}

----------------------------------------------------------------------------
(* What the managers do *)

Names(m) == {[m |-> m, n |-> n] : n \in Owners}
IsUsed(o) == lock.owner = o \/ \E r \in net : r.owner = o
Unused(m) == {o \in Names(m) : ~IsUsed(o)}

(* Each request has an owner that was never used before. *)
Ask(m) ==
  /\ state[m].does = "idle"
  /\ Broken = "owner-reused" \/ Unused(m) # {}
  /\ LET n == IF Broken = "owner-reused" THEN 1
              ELSE CHOOSE n \in Owners : /\ [m |-> m, n |-> n] \in Unused(m)
                                         /\ \A o \in Unused(m) : n <= o.n
         me == [m |-> m, n |-> n]
     IN /\ state' = [state EXCEPT ![m] = [does |-> "asks", as |-> me, timer |-> 0]]
        /\ UNCHANGED lock
        /\ Under(net \union {Message("acquire", me, 0)})
  /\ alone' = 0
  /\ UNCHANGED <<counter, granted, wrong>>

(* The same request once more: no answer has come. *)
AskAgain(m) ==
  /\ state[m].does = "asks"
  /\ state' = [state EXCEPT ![m].timer = 0]
  /\ UNCHANGED <<lock, counter, granted, alone, wrong>>
  /\ Under(net \union {Message("acquire", state[m].as, 0)})

Renew(m, lease) ==
  /\ state[m].does = "holds" /\ state[m].timer > 0
  /\ UNCHANGED <<lock, counter, granted, state, alone, wrong>>
  /\ Under({r \in net : ~(r.kind = "renew" /\ r.owner = state[m].as /\ r.lease = lease)}
           \union {[Message("renew", state[m].as, 0) EXCEPT !.lease = lease]})

(* A guard is released, also one that was lost. *)
Release(m) ==
  /\ state[m].does = "holds"
  /\ state' = [state EXCEPT ![m] = Idle]
  /\ UNCHANGED <<lock, counter, granted, alone, wrong>>
  /\ Under(net \union {Message("release", state[m].as, 0)})

(* No answer is wanted any more.  The withdrawal has the age of the last acquire. *)
Withdraw(m) ==
  /\ state[m].does = "asks"
  /\ state' = [state EXCEPT ![m] = Idle]
  /\ UNCHANGED <<lock, counter, granted, alone, wrong>>
  /\ Under(net \union {Message("withdraw", state[m].as, state[m].timer)})

(* A process ends without a word, or its request was refused. *)
Leave(m) ==
  /\ state[m].does # "idle"
  /\ state' = [state EXCEPT ![m] = Idle]
  /\ UNCHANGED <<lock, counter, granted, alone, wrong>>
  /\ Under(net)

(* An answer arrives.  Validity counts from the send. *)
Hear == \E r \in net :
  LET m == r.owner.m
      left == Valid(r.lease) - (IF Broken = "from-answer" THEN 0 ELSE r.age)
  IN /\ \/ r.kind = "granted" /\ Does(m, "asks", r.owner)
        \/ r.kind = "renewed" /\ Does(m, "holds", r.owner) /\ state[m].timer > 0
     /\ left > 0
     /\ state' = [state EXCEPT ![m] =
                   [does |-> "holds", as |-> r.owner,
                    timer |-> IF r.kind = "granted" THEN left ELSE Max(@.timer, left)]]
     /\ UNCHANGED <<lock, counter, granted, alone, wrong>>
     /\ Under(net \ {r})

----------------------------------------------------------------------------
(* What the server does *)

Token == IF Broken = "bare-counter" THEN counter + 1 ELSE Max(counter, 0) + 1

(* A request may come after a longer one. *)
Lengthened(lease) == IF Broken = "shortens" THEN lease ELSE Max(lock.left, lease)

ExecuteAcquire == \E r \in net :
  /\ r.kind = "acquire"
  /\ lock = Free \/ lock.owner = r.owner
  /\ Token <= PerTick
  /\ lock' = [owner |-> r.owner, left |-> Lengthened(Lease)]
  /\ counter' = Token
  /\ granted' = Max(granted, Token)
  /\ wrong' = IF Token > granted THEN wrong ELSE wrong \union {"token"}
  /\ UNCHANGED <<state, alone>>
  /\ Under(net \union {Answer(r, "granted")})

Robs(r) == lock # Free /\ lock.owner # r.owner

ExecuteRenew == \E r \in net :
  /\ r.kind = "renew"
  /\ lock.owner = r.owner \/ (Broken = "blind-renewal" /\ lock # Free)
  /\ lock' = [lock EXCEPT !.left = Lengthened(r.lease)]
  /\ wrong' = IF Robs(r) THEN wrong \union {"robbed"} ELSE wrong
  /\ UNCHANGED <<counter, granted, state, alone>>
  /\ Under((net \ {r}) \union {Answer(r, "renewed")})

ExecuteEnd == \E r \in net :
  /\ r.kind \in {"release", "withdraw"}
  /\ LET ends == lock # Free /\ (lock.owner = r.owner \/ Broken = "no-owner-check")
         isSettled == r.kind = "withdraw" /\ (r.age >= Fresh \/ Broken = "settled-at-once")
     IN /\ ends \/ isSettled
        /\ lock' = IF ends THEN Free ELSE lock
        /\ wrong' = IF ends /\ Robs(r) THEN wrong \union {"robbed"} ELSE wrong
        /\ UNCHANGED <<counter, granted, state, alone>>
        /\ net' = {q \in net : Matters(q, net)} \ (IF isSettled THEN {r} ELSE {})
        /\ settled' = IF isSettled THEN settled \union {r.owner} ELSE settled

(* The counter outlives its holds by the retention, and is lost then. *)
Forget ==
  /\ lock = Free /\ granted <= 0 /\ counter > LongAgo
  /\ counter' = LongAgo
  /\ UNCHANGED <<lock, granted, net, state, settled, alone, wrong>>

----------------------------------------------------------------------------
(* Time, and what guarantees.md assumes not to happen *)

(* Nobody wants a key that may be taken.  A renewal that is still under way may prolong its lease. *)
IsAlone ==
  /\ \A m \in Managers : state[m] = Idle
  /\ lock # Free \/ \E r \in net : r.kind = "acquire"
  /\ "late-renewal" \in Faults \/ ~\E r \in net : r.kind = "renew"

Older(r) ==
  LET limit == CASE r.kind \in {"acquire", "granted"} -> Max(Fresh, Valid(Lease))
                 [] r.kind \in {"renew", "renewed"} -> Valid(r.lease)
                 [] r.kind = "withdraw" -> Fresh
                 [] OTHER -> 0
  IN [r EXCEPT !.age = Min(@ + 1, limit)]

Tick ==
  /\ lock' = IF lock.left <= 1 THEN Free ELSE [lock EXCEPT !.left = @ - 1]
  /\ counter' = Max(counter - PerTick, LongAgo)
  /\ granted' = Max(granted - PerTick, LongAgo)
  /\ state' = [m \in Managers |->
                CASE state[m].does = "asks" -> [state[m] EXCEPT !.timer = Min(@ + 1, Fresh)]
                  [] state[m].does = "holds" -> [state[m] EXCEPT !.timer = Max(@ - 1, 0)]
                  [] OTHER -> Idle]
  /\ alone' = IF IsAlone THEN Min(alone + 1, Longest + Fresh) ELSE 0
  /\ UNCHANGED wrong
  /\ Under({Older(r) : r \in net})

(* Forced release, DEL, eviction, or a server clock that is stepped forward. *)
Vanish ==
  /\ "vanish" \in Faults /\ lock # Free
  /\ lock' = Free
  /\ UNCHANGED <<counter, granted, state, alone, wrong>>
  /\ Under(net)

(* FLUSHALL, a restart without data, or a failover to a replica that has heard of nothing. *)
Flush ==
  /\ "flush" \in Faults /\ (granted <= 0 \/ "clock-behind" \in Faults)
  /\ lock' = Free
  /\ counter' = LongAgo
  /\ UNCHANGED <<granted, state, alone, wrong>>
  /\ Under(net)

----------------------------------------------------------------------------

Init ==
  /\ lock = Free /\ counter = LongAgo /\ granted = LongAgo
  /\ net = {} /\ state = [m \in Managers |-> Idle]
  /\ settled = {} /\ alone = 0 /\ wrong = {}

Next ==
  \/ Tick \/ Forget \/ Vanish \/ Flush
  \/ \E m \in Managers : \/ Ask(m) \/ AskAgain(m) \/ Release(m) \/ Withdraw(m) \/ Leave(m)
                         \/ \E lease \in Leases : Renew(m, lease)
  \/ Hear \/ ExecuteAcquire \/ ExecuteRenew \/ ExecuteEnd

Spec == Init /\ [][Next]_vars

----------------------------------------------------------------------------

Believes(m) == state[m].does = "holds" /\ state[m].timer > 0

(* P1 Exclusion: two managers never believe at once that they have the key. *)
P1 == \A m, o \in Managers : Believes(m) /\ Believes(o) => m = o

(* P2 Fencing tokens: each grant has a larger token than all before it. *)
P2 == "token" \notin wrong

(* P4 Nobody else's lock: no call touches the hold of another owner. *)
P4 == "robbed" \notin wrong

(* P5 Cancellation: nothing of a withdrawn request is held after Settled.  A key that nobody wants *)
(* is free one lease after the last moment at which the server may have executed something.        *)
P5 == lock # Free => lock.owner \notin settled /\ alone < Longest + Fresh
=============================================================================
