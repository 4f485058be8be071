----------------------------- MODULE Sequenced -----------------------------
(***************************************************************************)
(* One lock in etcd, as a queue of entries.  The first entry has the lock. *)
(* A manager has one session for all its entries: a lease, which it keeps  *)
(* alive with heartbeats.  An entry ends with its session.                 *)
(*                                                                         *)
(* An entry is known by its session and its owner.  Its place in the       *)
(* queue is the revision that created it, which is the token, too.         *)
(*                                                                         *)
(* A request may be executed late or never, and more than once if it was   *)
(* sent again.  An acquire names an epoch of its session.  A withdrawal    *)
(* deletes the entry and begins the next epoch, in one transaction.        *)
(*                                                                         *)
(* Reads show everything that was committed.  Times are timers that a tick *)
(* moves, as in Mutex.tla; the clock is that of the leader.                *)
(***************************************************************************)
EXTENDS Integers, Sequences, FiniteSets, TLC

CONSTANTS
  Managers,  \* the processes
  Nobody,    \* no owner
  Owners,    \* names of the owners of a manager; a name is used again when nothing refers to it
  Sessions,  \* names of the sessions of a manager; a name is used again when nothing refers to it
  Timeout,   \* ticks after which the leader ends a session that it does not hear of
  Margin,    \* ticks by which a manager's deadline is earlier
  Drift,     \* ticks by which a manager's clock may be late at its deadline
  Faults,    \* assumptions that do not hold: see README.md
  Broken     \* the rule that is left out, or "nothing"

ASSUME Faults \subseteq {"vanish", "revoke", "old-server"}

VARIABLES
  line,      \* entries in the order of their creation, with those that are gone and still matter
  left,      \* of each session: the ticks that are left of it at the leader
  deposed,   \* sessions that are alive for a leader that was deposed and goes on answering
  net,       \* requests and answers
  state,     \* of each manager: what it does, as which owner, in which session, how long it is sure
  ended,     \* owners whose withdrawal is settled, or whose release is done
  wrong      \* what has happened that must not: "token", "robbed"

vars == <<line, left, deposed, net, state, ended, wrong>>

Alike == Permutations(Managers)
Max(a, b) == IF a > b THEN a ELSE b
Min(a, b) == IF a < b THEN a ELSE b

(* A session that is over, and the number of one that a manager does not have. *)
Over == -1
None == 0

(* For how long a manager is sure of its session, from the send of a heartbeat. *)
Valid == Timeout + Drift - Margin
Sure(r) == IF Broken = "from-answer" THEN Valid ELSE Valid - r.age

Idle(s) == [s EXCEPT !.does = "idle", !.as = Nobody, !.again = FALSE]
Does(m, what, o) == state[m].does = what /\ state[m].as = o

Is(entry, o) == entry.isThere /\ entry.owner = o
Has(o) == \E i \in DOMAIN line : Is(line[i], o)
Queue == SelectSeq(line, LAMBDA e : e.isThere)

(* Kinds of messages:                               *)
(*   acquire, release, withdraw, beat    requests   *)
(*   first, beaten                       answers    *)
(* `n` is the session.  `again`: the request was sent more than once.  `age` counts from the *)
(* send of a heartbeat.                                                                      *)
Message(kind, o, n) == [kind |-> kind, owner |-> o, n |-> n, age |-> 0, again |-> FALSE]
Of(m) == [m |-> m, n |-> None]

IsSame(x, y) == x.owner.m = y.owner.m /\ x.n = y.n
IsAlive(r) == left[r.owner.m][r.n] # Over

(* Messages that can have no effect any more are dropped, so that they do not make more states. *)
(* A session that is over never comes back.                                                     *)
Matters(r, all) ==
  LET s == state'[r.owner.m]
      isAlive == left'[r.owner.m][r.n] # Over
      mayHold == \/ \E i \in DOMAIN line' : Is(line'[i], r.owner)
                 \/ \E a \in all : a.kind = "acquire" /\ a.owner = r.owner
                 \/ Broken = "deletes-by-session"
      isUseful == s.n = r.n /\ Sure(r) > s.sure
  IN CASE r.kind = "acquire" -> isAlive
       [] r.kind = "first" -> s.does = "asks" /\ s.as = r.owner
       [] r.kind = "beat" -> isAlive /\ isUseful
       [] r.kind = "beaten" -> isUseful
       [] OTHER -> isAlive /\ mayHold

(* An entry that is gone matters if its owner may still be granted the lock. *)
Needed(e) == e.isThere \/ state'[e.owner.m].as = e.owner

Ends(entries, all, owners) ==
  /\ line' = SelectSeq(entries, Needed)
  /\ net' = {r \in all : Matters(r, all)}
  /\ ended' = {o \in owners : /\ \/ \E i \in DOMAIN line' : Is(line'[i], o)
                                 \/ \E r \in net' : r.owner = o
                              /\ state'[o.m].as # o}
Under(entries, all) == Ends(entries, all, ended)

(* Deletes entries.  A waiter behind one of them looks again: it is not first by that alone. *)
Deletes(gone(_), all, owners) ==
  LET queue == Queue
      behind == {i \in DOMAIN queue \ {1} : gone(queue[i - 1]) /\ ~gone(queue[i])}
      told == {Message("first", queue[i].owner, queue[i].n) : i \in behind}
  IN Ends([i \in DOMAIN line |-> IF gone(line[i]) THEN [line[i] EXCEPT !.isThere = FALSE]
                                 ELSE line[i]],
          IF Broken = "predecessor" THEN all \union told ELSE all,
          owners)

----------------------------------------------------------------------------
(* What the managers do *)

Names(m) == {[m |-> m, n |-> n] : n \in Owners}
IsUsed(o) == \/ \E i \in DOMAIN line : line[i].owner = o
             \/ \E r \in net : r.owner = o
Unused(m) == {o \in Names(m) : ~IsUsed(o)}

(* A manager has a new session.  It is sure of it after the first heartbeat. *)
Open(m) ==
  /\ state[m].n = None
  /\ \E n \in Sessions :
       /\ left[m][n] = Over /\ <<m, n>> \notin deposed
       /\ ~\E k \in Sessions : k < n /\ left[m][k] = Over
       /\ left' = [left EXCEPT ![m][n] = Timeout]
       /\ state' = [state EXCEPT ![m].n = n]
  /\ UNCHANGED <<deposed, wrong>>
  /\ Under(line, net)

Beat(m) ==
  /\ state[m].n # None
  /\ UNCHANGED <<left, deposed, state, wrong>>
  /\ Under(line, {r \in net : ~(r.kind \in {"beat", "beaten"} /\ r.owner.m = m)}
                 \union {Message("beat", Of(m), state[m].n)})

(* Each request has an owner that was never used before. *)
Ask(m) ==
  /\ state[m].does = "idle" /\ state[m].n # None /\ Unused(m) # {}
  /\ LET me == CHOOSE o \in Unused(m) : \A other \in Unused(m) : o.n <= other.n
     IN /\ state' = [state EXCEPT ![m].does = "asks", ![m].as = me]
        /\ UNCHANGED <<left, deposed, wrong>>
        /\ Under(line, net \union {Message("acquire", me, state[m].n)})

(* The same request once more: no answer has come, or it named an epoch that is over.  From now *)
(* on any number of copies may be under way.                                                   *)
AskAgain(m) ==
  /\ state[m].does = "asks" /\ ~state[m].again
  /\ state' = [state EXCEPT ![m].again = TRUE]
  /\ UNCHANGED <<left, deposed, wrong>>
  /\ Under(line, {r \in net : ~(r.kind = "acquire" /\ r.owner = state[m].as)}
                 \union {[Message("acquire", state[m].as, state[m].n) EXCEPT !.again = TRUE]})

(* A guard is released, also one that was lost.  If a copy of its acquire may still be under  *)
(* way, a release is a withdrawal.                                                            *)
Release(m) ==
  /\ state[m].does = "holds"
  /\ LET kind == IF state[m].again /\ Broken # "release-alone" THEN "withdraw" ELSE "release"
     IN /\ state' = [state EXCEPT ![m] = Idle(@)]
        /\ UNCHANGED <<left, deposed, wrong>>
        /\ Under(line, net \union {Message(kind, state[m].as, state[m].n)})

(* No answer is wanted any more. *)
Withdraw(m) ==
  /\ state[m].does = "asks"
  /\ state' = [state EXCEPT ![m] = Idle(@)]
  /\ UNCHANGED <<left, deposed, wrong>>
  /\ Under(line, net \union {Message("withdraw", state[m].as, state[m].n)})

(* A process ends without a word, or gives its session up. *)
Leave(m) ==
  /\ state[m].n # None
  /\ state' = [state EXCEPT ![m] = [Idle(@) EXCEPT !.n = None, !.sure = 0]]
  /\ UNCHANGED <<left, deposed, wrong>>
  /\ Under(line, net)

(* A manager hears that its entry is the first.  That is a grant if it is sure of its session. *)
(* Grants come in the order of the queue: no entry before this one may be granted any more.    *)
HearFirst == \E r \in net :
  LET m == r.owner.m
      isMine(i) == line[i].owner = r.owner
      isBefore(i) == \E j \in DOMAIN line : isMine(j) /\ i < j
  IN /\ r.kind = "first" /\ Does(m, "asks", r.owner)
     /\ state[m].sure > 0 \/ Broken = "late-first"
     /\ state' = [state EXCEPT ![m].does = "holds"]
     /\ wrong' = IF \E i \in DOMAIN line : isMine(i) /\ line[i].isOld
                 THEN wrong \union {"token"} ELSE wrong
     /\ UNCHANGED <<left, deposed>>
     /\ Under([i \in DOMAIN line |-> IF isBefore(i) THEN [line[i] EXCEPT !.isOld = TRUE]
                                     ELSE line[i]],
              net \ {r})

(* The answer to a heartbeat arrives.  Validity counts from its send. *)
HearBeaten == \E r \in net :
  /\ r.kind = "beaten"
  /\ state' = [state EXCEPT ![r.owner.m].sure = Sure(r)]
  /\ UNCHANGED <<left, deposed, wrong>>
  /\ Under(line, net \ {r})

----------------------------------------------------------------------------
(* What etcd does *)

(* An acquire creates its entry, if there is none of that name, and answers whether it is first. *)
(* The last entry of an owner is the one that matters.                                           *)
ExecuteAcquire == \E r \in net :
  LET entry == [owner |-> r.owner, n |-> r.n, isThere |-> TRUE, isOld |-> FALSE]
      others == SelectSeq(line, LAMBDA e : e.owner # r.owner)
      isNew == ~Has(r.owner)
      head == Head(IF isNew THEN Append(Queue, entry) ELSE Queue)
      isFirst == head.owner = r.owner \/ (Broken = "by-session" /\ IsSame(head, r))
  IN /\ r.kind = "acquire" /\ IsAlive(r) /\ (isNew \/ isFirst)
     /\ UNCHANGED <<left, deposed, state, wrong>>
     /\ Under(IF isNew THEN Append(others, entry) ELSE line,
              (IF r.again THEN net ELSE net \ {r})
              \union (IF isFirst THEN {Message("first", r.owner, r.n)} ELSE {}))

(* A waiter reads the queue. *)
ExecuteLook(m) ==
  /\ state[m].does = "asks" /\ Queue # <<>> /\ Head(Queue).owner = state[m].as
  /\ UNCHANGED <<left, deposed, state, wrong>>
  /\ Under(line, net \union {Message("first", state[m].as, state[m].n)})

(* Only the entry of this owner is deleted.  A copy may come later. *)
ExecuteRelease == \E r \in net :
  LET gone(e) == e.owner = r.owner \/ (Broken = "deletes-by-session" /\ IsSame(e, r))
      robs == \E i \in DOMAIN line : line[i].isThere /\ gone(line[i]) /\ line[i].owner # r.owner
  IN /\ r.kind = "release"
     /\ UNCHANGED <<left, deposed, state>>
     /\ wrong' = IF robs THEN wrong \union {"robbed"} ELSE wrong
     /\ Deletes(gone, net, ended \union {r.owner})

(* The entry is deleted, and an epoch begins: acquires that name an older one fail.  Those of *)
(* other owners may fail, too, and are sent again: here they are just late.  A deletion that  *)
(* comes before the epoch, in a transaction apart, may have found nothing.                    *)
ExecuteWithdraw == \E r \in net :
  LET gone(e) == e.owner = r.owner /\ Broken # "apart"
      fails(x) == x.kind = "acquire" /\ x.owner = r.owner /\ Broken # "no-epoch"
  IN /\ r.kind = "withdraw"
     /\ UNCHANGED <<left, deposed, state, wrong>>
     /\ Deletes(gone, {x \in net : ~fails(x)}, ended \union {r.owner})

(* The leader hears of a session. *)
ExecuteBeat == \E r \in net :
  /\ r.kind = "beat" /\ IsAlive(r)
  /\ left' = [left EXCEPT ![r.owner.m][r.n] = Timeout]
  /\ UNCHANGED <<deposed, state, wrong>>
  /\ Under(line, (net \ {r}) \union {[r EXCEPT !.kind = "beaten"]})

(* The leader ends a session.  It may be late, as a new one is that gives each session its full *)
(* time.  It is not early, unless somebody revokes the lease.                                   *)
Expire(m, n) ==
  LET gone(e) == e.owner.m = m /\ e.n = n
  IN /\ left[m][n] = 0 \/ ("revoke" \in Faults /\ left[m][n] # Over)
     /\ left' = [left EXCEPT ![m][n] = Over]
     /\ UNCHANGED <<deposed, state, wrong>>
     /\ Deletes(gone, net, ended)

----------------------------------------------------------------------------
(* Time, and what guarantees.md assumes not to happen *)

Older(r) == [r EXCEPT !.age = IF r.kind \in {"beat", "beaten"} THEN Min(@ + 1, Valid) ELSE 0]

Tick ==
  /\ left' = [m \in Managers |-> [n \in Sessions |->
               IF left[m][n] = Over THEN Over ELSE Max(left[m][n] - 1, 0)]]
  /\ state' = [m \in Managers |-> [state[m] EXCEPT !.sure = Max(@ - 1, 0)]]
  /\ UNCHANGED <<deposed, wrong>>
  /\ Under(line, {Older(r) : r \in net})

(* An operator deletes an entry. *)
Vanish ==
  /\ "vanish" \in Faults
  /\ UNCHANGED <<left, deposed, state, wrong>>
  /\ \E i \in DOMAIN line : LET gone(e) == e = line[i]
                            IN line[i].isThere /\ Deletes(gone, net, ended)

(* A leader is deposed.  It does not notice, and answers heartbeats: those need no majority. *)
Depose ==
  /\ "old-server" \in Faults /\ deposed = {}
  /\ deposed' = {<<m, n>> \in Managers \X Sessions : left[m][n] # Over}
  /\ UNCHANGED <<left, state, wrong>>
  /\ Under(line, net)

AnswerLate == \E r \in net :
  /\ r.kind = "beat" /\ <<r.owner.m, r.n>> \in deposed
  /\ UNCHANGED <<left, deposed, state, wrong>>
  /\ Under(line, (net \ {r}) \union {[r EXCEPT !.kind = "beaten"]})

----------------------------------------------------------------------------

Init ==
  /\ line = <<>> /\ deposed = {} /\ net = {} /\ ended = {} /\ wrong = {}
  /\ left = [m \in Managers |-> [n \in Sessions |-> IF n = 1 THEN Timeout ELSE Over]]
  /\ state = [m \in Managers |->
               [does |-> "idle", as |-> Nobody, again |-> FALSE, n |-> 1, sure |-> Valid]]

Next ==
  \/ Tick \/ Vanish \/ Depose
  \/ \E m \in Managers : \/ Open(m) \/ Beat(m) \/ Ask(m) \/ AskAgain(m) \/ Release(m) \/ Withdraw(m)
                         \/ Leave(m) \/ ExecuteLook(m)
                         \/ \E n \in Sessions : Expire(m, n)
  \/ HearFirst \/ HearBeaten
  \/ ExecuteAcquire \/ ExecuteRelease \/ ExecuteWithdraw \/ ExecuteBeat \/ AnswerLate

Spec == Init /\ [][Next]_vars

----------------------------------------------------------------------------

Believes(m) == state[m].does = "holds" /\ state[m].sure > 0

(* P1 Exclusion: two managers never believe at once that they have the key. *)
P1 == \A m, o \in Managers : Believes(m) /\ Believes(o) => m = o

(* P2 Fencing tokens: each grant has a larger token than all before it. *)
P2 == "token" \notin wrong

(* P4 Nobody else's lock: no call deletes the entry of another owner. *)
P4 == "robbed" \notin wrong

(* P5 Cancellation: nothing of a request is in the queue after Settled, or after its release. *)
P5 == \A o \in ended : ~Has(o)
=============================================================================
