----------------------------- MODULE Ephemeral -----------------------------
(***************************************************************************)
(* One lock in ZooKeeper, as a queue of ephemeral entries.  The first      *)
(* entry has the lock.  An entry is known by the session that created it   *)
(* and by its owner, whose uuid is in its name.  It ends with its session. *)
(* The place in the queue is the zxid of the creation, which is the token. *)
(*                                                                         *)
(* A request may be executed late or never, and more than once if it was   *)
(* sent again: then there are two entries of one owner.                    *)
(*                                                                         *)
(* Each session has an epoch: the version of a node.  An acquire is one    *)
(* transaction.  It checks the epoch of its session, and creates the       *)
(* entry.  A withdrawal writes the epoch, lists the queue, and deletes     *)
(* what it finds of its owner.                                             *)
(*                                                                         *)
(* Lists come from the leader or from a follower that lags behind.  There  *)
(* is no clock.  Heartbeats.tla shows that a manager is sure only of a     *)
(* session that is alive.  Here it is sure for as long as that allows.     *)
(***************************************************************************)
EXTENDS Integers, Sequences, FiniteSets, TLC

CONSTANTS
  Managers,  \* the processes
  Nobody,    \* no owner
  Owners,    \* names of the owners of a manager; a name is used again when nothing refers to it
  Sessions,  \* names of the sessions of a manager; a name is used again when nothing refers to it
  Movers,    \* managers that may have all of them; the others have one
  Copies,    \* numbers of the entries that one owner may have in one session
  Servers,   \* where managers read: "leader", "follower"
  Faults,    \* assumptions that do not hold: see README.md
  Broken     \* the rule that is left out, or "nothing"

ASSUME Faults \subseteq {"vanish", "early-end"}

VARIABLES
  line,      \* entries in the order of their creation, with those that are gone and still matter
  lag,       \* the queue as the follower knows it
  alive,     \* of each manager: its sessions that have not ended at the leader
  net,       \* requests and answers
  state,     \* of each manager: what it does, as which owner, in which sessions, see Fresh
  ended,     \* owners whose withdrawal is settled, or whose release is done
  wrong      \* what has happened that must not: "token", "robbed"

vars == <<line, lag, alive, net, state, ended, wrong>>

Alike == Permutations(Movers) \union Permutations(Managers \ Movers)

(* Names of the sessions that a manager may have. *)
Of(m) == IF m \in Movers THEN Sessions ELSE {1}

(* The number of a session that a manager does not have. *)
None == 0

(* `n`: the session.  `at`: the server that it reads from.  `used`: sessions in which the     *)
(* acquire was sent.  `again`: it was sent more than once.                                    *)
(* It is idle, asks or holds.  A withdrawal first writes, and then lists.                     *)
Fresh(n, server) == [does |-> "idle", as |-> Nobody, n |-> n, at |-> server, used |-> {},
                     again |-> FALSE]
Idle(s) == Fresh(s.n, s.at)

(* An entry has a number, since an owner may have two in one session. *)
Name(e) == [owner |-> e.owner, n |-> e.n, i |-> e.i]
IsThere(e) == e.isThere
Queue == LET there == SelectSeq(line, IsThere) IN [i \in DOMAIN there |-> Name(there[i])]
Has(o) == \E i \in DOMAIN line : line[i].isThere /\ line[i].owner = o
View(m) == IF state[m].at = "leader" THEN Queue ELSE lag

(* Kinds of messages:                                                                         *)
(*   acquire, release, write, delete    requests                                              *)
(*   written                            answer                                                *)
(* `n` is the session of the sender.  `ns` are sessions whose epochs are written.  `names`    *)
(* are entries to delete.  `isOver`: the epoch that it names is over.                         *)
Message(kind, o, n) == [kind |-> kind, owner |-> o, n |-> n, again |-> FALSE, isOver |-> FALSE,
                        ns |-> {}, names |-> {}]
Write(o, s) == [Message("write", o, s.n) EXCEPT
                 !.ns = IF Broken = "other-session" THEN {s.n} ELSE s.used]

IsAlive(r) == r.n \in alive[r.owner.m]

(* Messages that can have no effect any more are dropped, so that they do not make more states. *)
(* A session that is over never comes back.                                                     *)
Matters(r, all) ==
  LET s == state'[r.owner.m]
      isThere(name) == \E i \in DOMAIN line' : line'[i].isThere /\ Name(line'[i]) = name
      mayHold == \/ \E i \in DOMAIN line' : line'[i].isThere /\ line'[i].owner = r.owner
                 \/ \E a \in all : a.kind = "acquire" /\ a.owner = r.owner
                 \/ Broken = "deletes-by-session"
  IN CASE r.kind = "acquire" -> r.n \in alive'[r.owner.m]
       [] r.kind = "release" -> mayHold
       [] r.kind = "delete" -> \E name \in r.names : isThere(name)
       [] OTHER -> s.as = r.owner /\ s.n = r.n /\ s.does \in {"writes", "lists"}
                   /\ (r.kind = "write" \/ s.does = "writes")

(* An entry that is gone matters if its owner may still be granted the lock. *)
Needed(e) == e.isThere \/ state'[e.owner.m].as = e.owner

Ends(entries, all, owners) ==
  /\ line' = SelectSeq(entries, Needed)
  /\ net' = {r \in all : Matters(r, all)}
  /\ ended' = {o \in owners : /\ \/ \E i \in DOMAIN line' : line'[i].owner = o
                                 \/ \E r \in net' : r.owner = o
                              /\ state'[o.m].as # o}
Under(entries, all) == Ends(entries, all, ended)

Without(gone(_)) ==
  [i \in DOMAIN line |-> IF gone(line[i]) THEN [line[i] EXCEPT !.isThere = FALSE] ELSE line[i]]

----------------------------------------------------------------------------
(* What the managers do *)

Names(m) == {[m |-> m, n |-> n] : n \in Owners}
IsUsed(o) == \/ \E i \in DOMAIN line : line[i].owner = o
             \/ \E i \in DOMAIN lag : lag[i].owner = o
             \/ \E r \in net : r.owner = o
Unused(m) == {o \in Names(m) : ~IsUsed(o)}

IsUsedSession(m, n) == \/ n \in alive[m] \/ n \in state[m].used \/ n = state[m].n
                       \/ \E i \in DOMAIN line : line[i].owner.m = m /\ line[i].n = n
                       \/ \E i \in DOMAIN lag : lag[i].owner.m = m /\ lag[i].n = n
                       \/ \E r \in net : r.owner.m = m /\ (r.n = n \/ n \in r.ns)

(* A manager has a new session, as it does not trust the old one any more.  A request goes on *)
(* in the new session.  A withdrawal writes once more.                                        *)
Open(m) ==
  /\ state[m].does # "holds"
  /\ \E n \in Of(m), server \in Servers :
       /\ ~IsUsedSession(m, n)
       /\ ~\E k \in Of(m) : k < n /\ ~IsUsedSession(m, k)
       /\ alive' = [alive EXCEPT ![m] = @ \union {n}]
       /\ LET s == [state[m] EXCEPT !.n = n, !.at = server]
              asks == [s EXCEPT !.used = @ \union {n}, !.again = TRUE]
              writes == [s EXCEPT !.does = IF Broken = "goes-on" THEN @ ELSE "writes"]
          IN CASE s.does = "idle" ->
                    /\ state' = [state EXCEPT ![m] = s]
                    /\ Under(line, net)
               [] s.does = "asks" ->
                    /\ state' = [state EXCEPT ![m] = asks]
                    /\ Under(line, net \union {Message("acquire", s.as, n)})
               [] OTHER ->
                    /\ state' = [state EXCEPT ![m] = writes]
                    /\ Under(line, net \union {Write(s.as, s)})
  /\ UNCHANGED <<lag, wrong>>

(* Each request has an owner that was never used before. *)
Ask(m) ==
  /\ state[m].does = "idle" /\ state[m].n # None /\ Unused(m) # {}
  /\ LET me == CHOOSE o \in Unused(m) : \A other \in Unused(m) : o.n <= other.n
     IN /\ state' = [state EXCEPT ![m].does = "asks", ![m].as = me, ![m].used = {state[m].n}]
        /\ UNCHANGED <<lag, alive, wrong>>
        /\ Under(line, net \union {Message("acquire", me, state[m].n)})

(* The same request once more, since no answer has come.  From now on any number of copies may *)
(* be under way.                                                                               *)
AskAgain(m) ==
  /\ state[m].does = "asks"
  /\ LET request == Message("acquire", state[m].as, state[m].n)
         copies == [request EXCEPT !.again = TRUE]
     IN /\ copies \notin net
        /\ state' = [state EXCEPT ![m].again = TRUE]
        /\ UNCHANGED <<lag, alive, wrong>>
        /\ Under(line, (net \ {request}) \union {copies})

(* A manager lists the queue.  It has the lock if the first entry is its own, and of the       *)
(* session that it is sure of.  Grants come in the order of the queue: no entry before this    *)
(* one may be granted any more.                                                                *)
Look(m) ==
  LET s == state[m]
      isMine(i) == Name(line[i]) = Head(View(m))
      isBefore(i) == \E j \in DOMAIN line : isMine(j) /\ i < j
  IN /\ s.does = "asks" /\ View(m) # <<>> /\ Head(View(m)).owner = s.as
     /\ Head(View(m)).n = s.n \/ Broken = "old-session"
     /\ s.n \in alive[m] \/ Broken = "late-list"
     /\ state' = [state EXCEPT ![m].does = "holds"]
     /\ wrong' = IF \E i \in DOMAIN line : isMine(i) /\ line[i].isOld
                 THEN wrong \union {"token"} ELSE wrong
     /\ UNCHANGED <<lag, alive>>
     /\ Under([i \in DOMAIN line |-> IF isBefore(i) THEN [line[i] EXCEPT !.isOld = TRUE]
                                     ELSE line[i]],
              net)

(* No answer is wanted any more.  If a copy of its acquire may be under way, the release of a *)
(* guard is a withdrawal, too.                                                                *)
Withdraw(m) ==
  /\ \/ state[m].does = "asks"
     \/ state[m].does = "holds" /\ state[m].again /\ Broken # "release-alone"
  /\ state' = [state EXCEPT ![m].does = IF Broken = "lists-first" THEN "lists" ELSE "writes"]
  /\ UNCHANGED <<lag, alive, wrong>>
  /\ Under(line, net \union {Write(state[m].as, state[m])})

Release(m) ==
  /\ state[m].does = "holds" /\ (~state[m].again \/ Broken = "release-alone")
  /\ state' = [state EXCEPT ![m] = Idle(@)]
  /\ UNCHANGED <<lag, alive, wrong>>
  /\ Under(line, net \union {Message("release", state[m].as, state[m].n)})

(* The epoch is written.  A server that has answered a write knows all that came before it. *)
(* Another server need not.                                                                 *)
HearWritten == \E r \in net :
  LET m == r.owner.m
  IN /\ r.kind = "written" /\ state[m].does = "writes" /\ state[m].as = r.owner
     /\ state' = [state EXCEPT ![m].does = "lists"]
     /\ lag' = IF state[m].at = "follower" /\ Broken # "other-connection" THEN Queue ELSE lag
     /\ UNCHANGED <<alive, wrong>>
     /\ Under(line, net \ {r})

(* The withdrawal lists the queue.  It deletes what it finds of its owner, in any session, and *)
(* lists again.  It is settled when it finds nothing.                                          *)
List(m) ==
  LET o == state[m].as
      found == {View(m)[i] : i \in {j \in DOMAIN View(m) : View(m)[j].owner = o}}
  IN /\ state[m].does = "lists"
     /\ UNCHANGED <<lag, alive, wrong>>
     /\ IF found = {}
        THEN /\ state' = [state EXCEPT ![m] = Idle(@)]
             /\ Ends(line, net, ended \union {o})
        ELSE /\ state' = state
             /\ Under(line, net \union {[Message("delete", o, None) EXCEPT !.names = found]})

(* A process ends without a word. *)
Leave(m) ==
  /\ state[m].n # None
  /\ state' = [state EXCEPT ![m] = Fresh(None, "leader")]
  /\ UNCHANGED <<lag, alive, wrong>>
  /\ Under(line, net)

----------------------------------------------------------------------------
(* What ZooKeeper does *)

(* An acquire creates an entry, also if there is one of its owner.  A third would add nothing. *)
ExecuteAcquire == \E r \in net :
  LET numbers == {line[i].i : i \in {j \in DOMAIN line : line[j].owner = r.owner
                                                         /\ line[j].n = r.n}}
  IN /\ r.kind = "acquire" /\ IsAlive(r) /\ ~r.isOver
     /\ UNCHANGED <<lag, alive, state, wrong>>
     /\ \E i \in Copies \ numbers :
          /\ i = 1 \/ 1 \in numbers
          /\ Under(Append(line, [owner |-> r.owner, n |-> r.n, i |-> i, isThere |-> TRUE,
                                 isOld |-> FALSE]),
                   IF r.again THEN net ELSE net \ {r})

(* Only the entry of this owner is deleted.  A copy may come later. *)
ExecuteRelease == \E r \in net :
  LET gone(e) == \/ e.owner = r.owner
                 \/ Broken = "deletes-by-session" /\ e.owner.m = r.owner.m /\ e.n = r.n
      robs == \E i \in DOMAIN line : line[i].isThere /\ gone(line[i]) /\ line[i].owner # r.owner
  IN /\ r.kind = "release"
     /\ UNCHANGED <<lag, alive, state>>
     /\ wrong' = IF robs THEN wrong \union {"robbed"} ELSE wrong
     /\ Ends(Without(gone), net, ended \union {r.owner})

ExecuteDelete == \E r \in net :
  LET gone(e) == Name(e) \in r.names
  IN /\ r.kind = "delete"
     /\ UNCHANGED <<lag, alive, state, wrong>>
     /\ Under(Without(gone), net)

(* An epoch begins: acquires that name an older one fail.  Those of other owners may fail, too, *)
(* and are sent again: here they are just late.                                                 *)
ExecuteWrite == \E r \in net :
  LET fails(x) == x.kind = "acquire" /\ x.owner = r.owner /\ x.n \in r.ns /\ Broken # "no-epoch"
      over == {[x EXCEPT !.isOver = TRUE] : x \in {y \in net : fails(y)}}
  IN /\ r.kind = "write" /\ IsAlive(r)
     /\ UNCHANGED <<lag, alive, state, wrong>>
     /\ Under(line, {x \in net : ~fails(x)} \union {Message("written", r.owner, r.n)}
                    \union (IF Broken = "recreated" THEN over ELSE {}))

(* The node of an epoch is deleted, and another of its name is created.  Its version begins *)
(* anew.                                                                                    *)
Recreate ==
  /\ Broken = "recreated"
  /\ UNCHANGED <<lag, alive, state, wrong>>
  /\ Under(line, {[r EXCEPT !.isOver = FALSE] : r \in net})

(* The follower hears of what was committed. *)
CatchUp ==
  /\ "follower" \in Servers /\ lag # Queue
  /\ lag' = Queue
  /\ UNCHANGED <<alive, state, wrong>>
  /\ Under(line, net)

(* The leader ends a session. *)
Expire(m, n) ==
  LET gone(e) == e.owner.m = m /\ e.n = n
  IN /\ n \in alive[m]
     /\ alive' = [alive EXCEPT ![m] = @ \ {n}]
     /\ UNCHANGED <<lag, state, wrong>>
     /\ Under(Without(gone), net)

(* An operator deletes an entry. *)
Vanish ==
  /\ "vanish" \in Faults
  /\ UNCHANGED <<lag, alive, state, wrong>>
  /\ \E i \in DOMAIN line : LET gone(e) == e = line[i]
                            IN line[i].isThere /\ Under(Without(gone), net)

----------------------------------------------------------------------------

Init ==
  /\ line = <<>> /\ lag = <<>> /\ net = {} /\ ended = {} /\ wrong = {}
  /\ alive = [m \in Managers |-> {1}]
  /\ state \in [Managers -> {Fresh(1, server) : server \in Servers}]

Next ==
  \/ \E m \in Managers : \/ Open(m) \/ Ask(m) \/ AskAgain(m) \/ Look(m) \/ Withdraw(m) \/ Release(m)
                         \/ List(m) \/ Leave(m)
                         \/ \E n \in Of(m) : Expire(m, n)
  \/ HearWritten
  \/ ExecuteAcquire \/ ExecuteRelease \/ ExecuteDelete \/ ExecuteWrite \/ Recreate
  \/ CatchUp \/ Vanish

Spec == Init /\ [][Next]_vars

----------------------------------------------------------------------------

(* A manager is sure of its session at most until that ends. *)
IsSure(m) == state[m].n \in alive[m] \/ ("early-end" \in Faults /\ state[m].n # None)
Believes(m) == state[m].does = "holds" /\ IsSure(m)

(* P1 Exclusion: two managers never believe at once that they have the key. *)
P1 == \A m, o \in Managers : Believes(m) /\ Believes(o) => m = o

(* P2 Fencing tokens: each grant has a larger token than all before it. *)
P2 == "token" \notin wrong

(* P4 Nobody else's lock: no call deletes the entry of another owner. *)
P4 == "robbed" \notin wrong

(* P5 Cancellation: nothing of a request is in the queue after Settled, or after its release. *)
P5 == \A o \in ended : ~Has(o)
=============================================================================
