------------------------------- MODULE Plain -------------------------------
(***************************************************************************)
(* One key on one server, in the plain layout: a string with the owner,    *)
(* and one token counter for all keys of the server.                       *)
(*                                                                         *)
(* An acquire is two commands, SET NX PX and INCR, in this order on one    *)
(* connection; commands of others may come between them.  What they leave  *)
(* open is done by a script.  The server can't refuse late commands.  What *)
(* a broken connection has carried may still be executed, until the        *)
(* connection is killed.                                                   *)
(*                                                                         *)
(* Times are counted as in Mutex.tla.  Of tokens only the order matters:   *)
(* see `counter`.                                                          *)
(***************************************************************************)
EXTENDS Integers, FiniteSets, TLC

CONSTANTS
  Managers,  \* the processes
  Nobody,    \* the owner of a free key
  Owners,    \* names of the owners of a manager; a name is used again when nothing refers to it
  Lease,     \* ticks from a grant or renewal to its end, by the server's clock
  Leases,    \* the leases that a renewal may ask for
  Margin,    \* ticks by which a manager's deadline is earlier
  Drift,     \* ticks by which a manager's clock may be late at its deadline
  LateRenewals,  \* whether those of a broken connection may still be executed
  Faults,    \* assumptions that do not hold: see README.md
  Broken     \* the rule that is left out, or "nothing"

ASSUME /\ Lease \in Leases
       /\ Faults \subseteq {"vanish", "flush", "flush-between", "failover", "rollback", "clock-behind"}

VARIABLES
  lock,      \* its owner, and the ticks that are left of its lease
  counter,   \* "good": no token of a grant is larger; "lost": it counts from 1; or "behind"
  granted,   \* whether there was a grant
  net,       \* commands and answers under way
  state,     \* of each manager: what it does, as which owner, and the ticks until its deadline
  ended,     \* owners whose release or withdrawal was reported as done
  wrong      \* what has happened that must not: "token", "robbed"

vars == <<lock, counter, granted, net, state, ended, wrong>>

Alike == Permutations(Managers)
Max(a, b) == IF a > b THEN a ELSE b
Min(a, b) == IF a < b THEN a ELSE b

Free == [owner |-> Nobody, left |-> 0]
Idle == [does |-> "idle", as |-> Nobody, timer |-> 0]

(* A counter that was lost begins at 1, below the seed of each connection.  The seed is            *)
(* max(counter, server's clock), which is ahead of all tokens unless the clock is behind them.      *)
Seeded(c) ==
  IF c = "lost" /\ Broken # "no-seed" THEN IF "clock-behind" \in Faults THEN "behind" ELSE "good" ELSE c
Lose(c) == IF granted THEN "lost" ELSE c
Token(c) == CASE c = "good" -> "new" [] c = "behind" -> "old" [] OTHER -> "low"
IsAboveSeed(token) == token # "low" \/ Broken = "below-seed" \/ Broken = "no-seed"

(* For how long a manager believes in a hold after the send of the request, by the server's clock. *)
Valid(lease) == lease + Drift - Margin
IsUseful(r) == r.age < Valid(r.lease) \/ Broken = "from-answer"

(* Kinds of messages:                                                                             *)
(*   set                         both commands of an acquire are under way                        *)
(*   incr                        SET has taken the key, INCR is to come                           *)
(*   granted, own, failed        answers: to both; SET has found the own value; INCR has failed   *)
(*   script, scripted            take or lengthen with a token, in one script, and its answer     *)
(*   renew, renewed, release, withdraw                                                            *)
(* `age` counts from the send.  `old` says that the connection is broken: no answer will come.    *)
(* `token` is new if it is larger than those of all grants.  `late` says that the token is not    *)
(* larger than those of all earlier grants, or that a later grant has got its token first.        *)
Message(kind, o) ==
  [kind |-> kind, owner |-> o, age |-> 0, old |-> FALSE, token |-> "none", late |-> FALSE, lease |-> Lease]
Answer(r, kind, token) == [r EXCEPT !.kind = kind, !.token = token]

(* What may take a free key. *)
Takes == {"set", "script"}

(* Messages that can have no effect any more are dropped, so that they do not make more states. *)
Matters(r, all) ==
  LET s == state'[r.owner.m]
      mayHold == lock'.owner = r.owner \/ \E q \in all : q.kind \in Takes /\ q.owner = r.owner
      asks == s.does = "asks" /\ s.as = r.owner /\ ~r.old
      mayRun == LateRenewals \/ ~r.old
  IN CASE r.kind = "set" -> TRUE
       [] r.kind \in {"incr", "granted", "scripted"} -> asks /\ IsUseful(r)
       [] r.kind \in {"own", "failed"} -> asks
       [] r.kind = "renewed" -> s.does = "holds" /\ s.as = r.owner /\ ~r.old /\ IsUseful(r)
       [] r.kind = "script" -> TRUE
       [] r.kind = "renew" -> mayRun /\ (mayHold \/ Broken = "blind-renewal")
       [] OTHER -> mayHold \/ Broken = "no-owner-check"

Ends(all, owners) ==
  /\ net' = {r \in all : Matters(r, all)}
  /\ ended' = {o \in ended \union owners : /\ lock'.owner = o \/ \E r \in net' : r.owner = o
                                          /\ state'[o.m].as # o}
Under(all) == Ends(all, {})

----------------------------------------------------------------------------
(* What the managers do *)

Names(m) == {[m |-> m, n |-> n] : n \in Owners}
Unused(m) == {o \in Names(m) : lock.owner # o /\ ~\E r \in net : r.owner = o}

(* Each request has an owner that was never used before. *)
Ask(m) ==
  /\ state[m].does = "idle"
  /\ Broken = "owner-reused" \/ Unused(m) # {}
  /\ LET me == IF Broken = "owner-reused" THEN [m |-> m, n |-> 1]
               ELSE CHOOSE o \in Unused(m) : \A other \in Unused(m) : o.n <= other.n
     IN /\ state' = [state EXCEPT ![m] = [does |-> "asks", as |-> me, timer |-> 0]]
        /\ UNCHANGED <<lock, counter, granted, wrong>>
        /\ Under(net \union {Message("set", me)})

(* The connection has broken, and the same request is sent on the next one. *)
AskAgain(m) ==
  /\ state[m].does = "asks"
  /\ ~\E r \in net : r.owner = state[m].as /\ ~r.old
  /\ UNCHANGED <<lock, counter, granted, state, wrong>>
  /\ Under(net \union {Message("set", state[m].as)})

Renew(m, lease) ==
  /\ state[m].does = "holds" /\ state[m].timer > 0
  /\ UNCHANGED <<lock, counter, granted, state, wrong>>
  /\ Under({r \in net : ~(r.kind = "renew" /\ r.owner = state[m].as /\ r.lease = lease)}
           \union {[Message("renew", state[m].as) EXCEPT !.lease = lease]})

(* A guard is released, also one that was lost.  If its request was sent on a broken connection   *)
(* too, it is withdrawn: the late copy could take the key again.                                  *)
Release(m) ==
  LET me == state[m].as
      isSentTwice == \E r \in net : r.kind \in Takes /\ r.owner = me
      kind == IF isSentTwice /\ Broken # "no-kill-at-release" THEN "withdraw" ELSE "release"
  IN /\ state[m].does = "holds"
     /\ state' = [state EXCEPT ![m] = Idle]
     /\ UNCHANGED <<lock, counter, granted, wrong>>
     /\ Under(net \union {Message(kind, me)})

Withdraw(m) ==
  /\ state[m].does = "asks"
  /\ state' = [state EXCEPT ![m] = Idle]
  /\ UNCHANGED <<lock, counter, granted, wrong>>
  /\ Under(net \union {Message("withdraw", state[m].as)})

(* A process ends without a word, or its request was refused. *)
Leave(m) ==
  /\ state[m].does # "idle"
  /\ state' = [state EXCEPT ![m] = Idle]
  /\ UNCHANGED <<lock, counter, granted, wrong>>
  /\ Under(net)

(* A connection breaks.  The next one begins with a seed. *)
Reconnect(m) ==
  /\ counter # Seeded(counter) \/ \E r \in net : r.owner.m = m /\ ~r.old
  /\ counter' = Seeded(counter)
  /\ UNCHANGED <<lock, granted, state, wrong>>
  /\ Under({IF r.owner.m # m \/ r.kind \in {"release", "withdraw"} THEN r
            ELSE [r EXCEPT !.old = TRUE, !.age = 0] : r \in net})

(* Answers.  Validity counts from the send, less the margin. *)

HearGrant == \E r \in net :
  LET m == r.owner.m
      left == IF Broken = "from-answer" THEN Valid(Lease) ELSE Valid(Lease) - r.age
  IN /\ \/ r.kind = "granted" /\ IsAboveSeed(r.token)
        \/ r.kind = "scripted" /\ IsAboveSeed(r.token)
        \/ r.kind = "own" /\ Broken = "own-is-grant"
     /\ left > 0
     /\ state' = [state EXCEPT ![m] = [does |-> "holds", as |-> r.owner, timer |-> left]]
     /\ wrong' = IF r.late THEN wrong \union {"token"} ELSE wrong
     /\ UNCHANGED <<lock, counter, granted>>
     /\ Under(net \ {r})

(* A key that was found under the own owner has not been lengthened yet.  A script does that, and   *)
(* it follows if INCR has failed, or if its answer shows that the counter was lost.                 *)
HearOwn == \E r \in net :
  /\ \/ r.kind \in {"own", "failed"}
     \/ r.kind = "granted" /\ ~IsAboveSeed(r.token)
  /\ UNCHANGED <<lock, counter, granted, state, wrong>>
  /\ Under((net \ {r}) \union {[Message("script", r.owner) EXCEPT !.token = r.token]})

(* INCR has failed, or its answer is not above the seed: the counter was lost.  The key is given  *)
(* back.  Before anything else is asked, the connection seeds the counter.                        *)
HearNoGrant == \E r \in net :
  /\ \/ r.kind = "failed"
     \/ r.kind \in {"granted", "scripted"} /\ ~IsAboveSeed(r.token)
  /\ state' = [state EXCEPT ![r.owner.m] = Idle]
  /\ counter' = IF r.kind = "failed" THEN counter ELSE Seeded(counter)
  /\ UNCHANGED <<lock, granted, wrong>>
  /\ IF Broken = "kept-without-token"
     THEN Ends(net, {r.owner})
     ELSE Under(net \union {Message("withdraw", r.owner)})

HearRenewed == \E r \in net :
  LET m == r.owner.m
  IN /\ r.kind = "renewed"
     /\ state[m].timer > 0
     /\ state' = [state EXCEPT ![m].timer = Max(@, Valid(r.lease) - r.age)]
     /\ UNCHANGED <<lock, counter, granted, wrong>>
     /\ Under(net \ {r})

----------------------------------------------------------------------------
(* What the server does *)

(* The token of the INCR behind a SET that has found its own value.  Only a twin believes in it. *)
Early == IF Broken = "token-before-lengthen" THEN Token(counter) ELSE "none"

(* SET takes a free key, finds its own value, or is refused.  On a broken connection it may have   *)
(* been sent several times.                                                                        *)
ExecuteSet == \E r \in net :
  /\ r.kind = "set"
  /\ UNCHANGED <<granted, state, wrong>>
  /\ CASE lock = Free ->
            /\ lock' = [owner |-> r.owner, left |-> Lease]
            /\ UNCHANGED counter
            /\ Under(IF r.old THEN net ELSE (net \ {r}) \union {Answer(r, "incr", "none")})
       [] lock.owner = r.owner ->
            /\ UNCHANGED <<lock, counter>>
            /\ Under(IF r.old THEN net ELSE (net \ {r}) \union {Answer(r, "own", Early)})
       [] OTHER ->
            /\ UNCHANGED <<lock, counter>>
            /\ Under(net \ {r})

(* A grant gets its token.  Earlier grants that still have none come too late, and tokens that were *)
(* counted before are no longer new.                                                                *)
Counted(r, kind, token) == [Answer(r, kind, token) EXCEPT !.late = @ \/ token # "new"]

Passed(all, o) == {CASE r.owner = o -> r
                     [] r.kind = "incr" -> [r EXCEPT !.late = TRUE]
                     [] r.token = "new" /\ r.kind \in {"own", "script"} -> [r EXCEPT !.token = "old"]
                     [] OTHER -> r : r \in all}

ExecuteIncr == \E r \in net :
  /\ r.kind = "incr"
  /\ granted' = TRUE
  /\ UNCHANGED <<lock, counter, state, wrong>>
  /\ Under(Passed(net \ {r}, r.owner) \union {Counted(r, "granted", Token(counter))})

IncrFails == \E r \in net :
  /\ r.kind = "incr"
  /\ UNCHANGED <<lock, counter, granted, state, wrong>>
  /\ Under((net \ {r}) \union {Answer(r, "failed", "none")})

(* The script seeds the counter itself. On a broken connection it may have been sent several times. *)
ExecuteScript == \E r \in net :
  /\ r.kind = "script" /\ (lock = Free \/ lock.owner = r.owner)
  /\ lock' = [owner |-> r.owner, left |-> Max(lock.left, Lease)]
  /\ counter' = Seeded(counter)
  /\ granted' = TRUE
  /\ UNCHANGED <<state, wrong>>
  /\ LET token == IF Broken = "token-before-lengthen" THEN r.token ELSE Token(counter')
         answer == IF r.old THEN {r} ELSE {Counted(r, "scripted", token)}
     IN Under(Passed(net \ {r}, r.owner) \union answer)

ScriptIsRefused == \E r \in net :
  /\ r.kind = "script" /\ ~r.old /\ lock # Free /\ lock.owner # r.owner
  /\ UNCHANGED <<lock, counter, granted, state, wrong>>
  /\ Under(net \ {r})

Robs(r) == lock # Free /\ lock.owner # r.owner

ExecuteRenew == \E r \in net :
  /\ r.kind = "renew"
  /\ lock.owner = r.owner \/ (Broken = "blind-renewal" /\ lock # Free)
  /\ lock' = [lock EXCEPT !.left = IF Broken = "shortens" THEN r.lease ELSE Max(@, r.lease)]
  /\ wrong' = IF Robs(r) THEN wrong \union {"robbed"} ELSE wrong
  /\ UNCHANGED <<counter, granted, state>>
  /\ Under((net \ {r}) \union (IF r.old THEN {} ELSE {Answer(r, "renewed", "none")}))

(* Compare and delete.  A withdrawal follows the acquire on the same connection, or kills the      *)
(* broken connections first: so it is settled at once.                                             *)
ExecuteEnd == \E r \in net :
  /\ r.kind \in {"release", "withdraw"}
  /\ LET ends == lock # Free /\ (lock.owner = r.owner \/ Broken = "no-owner-check")
         isFirst == \E q \in net : q.kind \in Takes /\ q.owner = r.owner /\ ~q.old
         isDone == r.kind = "release" \/ ~isFirst
         kills == r.kind = "withdraw" /\ isDone /\ Broken # "no-kill"
         rest == {q \in net : ~(isDone /\ q = r) /\ ~(kills /\ q.old /\ q.owner.m = r.owner.m)}
     IN /\ ends \/ isDone
        /\ lock' = IF ends THEN Free ELSE lock
        /\ wrong' = IF ends /\ Robs(r) THEN wrong \union {"robbed"} ELSE wrong
        /\ UNCHANGED <<counter, granted, state>>
        /\ Ends(rest, IF isDone THEN {r.owner} ELSE {})

(* The server closes a broken connection. *)
Close(m) ==
  /\ \E r \in net : r.owner.m = m /\ r.old
  /\ UNCHANGED <<lock, counter, granted, state, wrong>>
  /\ Under({r \in net : r.owner.m # m \/ ~r.old})

----------------------------------------------------------------------------
(* Time, and what guarantees.md assumes not to happen *)

Older(r) ==
  LET limit == CASE r.kind \in {"release", "withdraw", "own", "failed"} \/ r.old -> 0
                 [] OTHER -> Valid(r.lease)
  IN [r EXCEPT !.age = Min(@ + 1, limit)]

Tick ==
  /\ lock' = IF lock.left <= 1 THEN Free ELSE [lock EXCEPT !.left = @ - 1]
  /\ state' = [m \in Managers |-> [state[m] EXCEPT !.timer = Max(@ - 1, 0)]]
  /\ UNCHANGED <<counter, granted, wrong>>
  /\ Under({Older(r) : r \in net})

(* Forced release, DEL, eviction, or a server clock that is stepped forward. *)
Vanish ==
  /\ "vanish" \in Faults /\ lock # Free
  /\ lock' = Free
  /\ UNCHANGED <<counter, granted, state, wrong>>
  /\ Under(net)

(* The counter is lost, and perhaps the key.  No connection breaks. *)
Flush ==
  /\ "flush" \in Faults
  /\ counter' = Lose(counter)
  /\ \/ lock' = lock
     \/ lock' = Free /\ ("flush-between" \in Faults \/ ~\E r \in net : r.kind = "incr")
  /\ UNCHANGED <<granted, state, wrong>>
  /\ Under(net)

(* The server was a replica for a while that lacked the last tokens, and no connection has noticed. *)
Rollback ==
  /\ "rollback" \in Faults /\ granted
  /\ counter' = "behind"
  /\ UNCHANGED <<lock, granted, state, wrong>>
  /\ Under(net)

(* Another server takes over, which may lack the key or the last tokens.  All connections are new. *)
Failover ==
  /\ "failover" \in Faults
  /\ lock' \in {lock, Free}
  /\ counter' \in {Seeded(counter), Seeded(Lose(counter))}
  /\ UNCHANGED <<granted, state, wrong>>
  /\ Under({r \in net : r.kind \in {"granted", "own", "scripted", "renewed", "release", "withdraw"}})

----------------------------------------------------------------------------

Init ==
  /\ lock = Free /\ counter = "good" /\ granted = FALSE
  /\ net = {} /\ state = [m \in Managers |-> Idle]
  /\ ended = {} /\ wrong = {}

Next ==
  \/ Tick \/ Vanish \/ Flush \/ Rollback \/ Failover
  \/ \E m \in Managers : \/ Ask(m) \/ AskAgain(m) \/ Release(m) \/ Withdraw(m) \/ Leave(m)
                         \/ Reconnect(m) \/ Close(m) \/ \E lease \in Leases : Renew(m, lease)
  \/ HearGrant \/ HearOwn \/ HearNoGrant \/ HearRenewed
  \/ ExecuteSet \/ ExecuteIncr \/ IncrFails \/ ExecuteScript \/ ScriptIsRefused
  \/ ExecuteRenew \/ ExecuteEnd

Spec == Init /\ [][Next]_vars

----------------------------------------------------------------------------

Believes(m) == state[m].does = "holds" /\ state[m].timer > 0

(* P1 Exclusion: two managers never believe at once that they have the key. *)
P1 == \A m, o \in Managers : Believes(m) /\ Believes(o) => m = o

(* P2 Fencing tokens: tokens that are believed in grow in the order of the grants. *)
P2 == "token" \notin wrong

(* P4 Nobody else's lock: no call touches the hold of another owner. *)
P4 == "robbed" \notin wrong

(* P5 Cancellation: nothing of a request is held after its release or withdrawal was done. *)
P5 == lock # Free => lock.owner \notin ended
=============================================================================
