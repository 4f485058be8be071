package lockinterop;

import static java.util.concurrent.TimeUnit.MILLISECONDS;

import java.io.FileOutputStream;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.atomic.AtomicLong;
import java.util.concurrent.locks.LockSupport;
import java.util.stream.Stream;

import org.redisson.api.RCountDownLatch;
import org.redisson.api.RFencedLock;
import org.redisson.api.RLock;
import org.redisson.api.RObject;
import org.redisson.api.RPermitExpirableSemaphore;
import org.redisson.api.RedissonClient;

/**
 * The operations. Times are milliseconds.
 *
 * <p>Kinds of locks: {@code lock fair read write fenced spin}, and {@code multi}, whose name is a list
 * {@code kind:name,kind:name,..}. One object is made for each kind and name and used by all threads.
 *
 * <pre>
 * lock       [lease]           lock()
 * trylock    [wait] [lease]    tryLock() in the form that has these arguments: true or false
 * unlock                       unlock()
 * force                        forceUnlock(): true or false
 * delete                       delete(): true or false
 * status                       {locked, mine, count, ttl}; for multi {mine}
 * token      [lease]           fenced: lockAndGetToken(..), the token
 * trytoken   [wait] [lease]    fenced: tryLockAndGetToken(..): the token or null
 * gettoken                     fenced: getToken()
 * hammer     rounds | for, [hold_us] [pause_us] [lease] [log]
 *            locks and unlocks again and again, and is hold_us inside and pause_us outside: {rounds, longest, waited}
 *            (ns; of the calls of lock). Writes each section to the file log, as overlap.rs has it.
 * </pre>
 *
 * <p>Kind {@code semaphore} (RPermitExpirableSemaphore):
 *
 * <pre>
 * permits n                    trySetPermits(n)
 * acquire    [lease]           acquire(..): the permit's id
 * tryacquire [wait] [lease]    tryAcquire(..): the id or null
 * release id | tryrelease id   release(id), tryRelease(id)
 * extend id lease              updateLeaseTime(..)
 * available                    availablePermits()
 * </pre>
 *
 * <p>Kind {@code latch} (RCountDownLatch):
 *
 * <pre>
 * setcount n                   trySetCount(n)
 * countdown                    countDown()
 * await [wait]                 await(..): true or false; without a wait null
 * count                        getCount()
 * </pre>
 */
final class Commands {
    private static final AtomicLong SECTIONS = new AtomicLong();

    private final RedissonClient client;
    private final Map<String, RLock> locks = new ConcurrentHashMap<>();
    private final Map<String, RPermitExpirableSemaphore> semaphores = new ConcurrentHashMap<>();
    private final Map<String, RCountDownLatch> latches = new ConcurrentHashMap<>();

    Commands(RedissonClient client) {
        this.client = client;
    }

    /** The field of this thread in the hashes of locks. */
    String owner() {
        return client.getId() + ":" + Thread.currentThread().getId();
    }

    Object run(Rival.Command command) throws InterruptedException, IOException {
        return switch (command.kind()) {
            case "semaphore" -> semaphore(command,
                semaphores.computeIfAbsent(command.name(), client::getPermitExpirableSemaphore));
            case "latch" -> latch(command,
                latches.computeIfAbsent(command.name(), client::getCountDownLatch));
            default -> lock(command, find(command.kind(), command.name()));
        };
    }

    private RLock find(String kind, String name) {
        // Not computeIfAbsent: a multi lock finds its members on the way.
        String key = kind + ":" + name;
        RLock found = locks.get(key);
        if (found == null) {
            RLock made = make(kind, name);
            RLock earlier = locks.putIfAbsent(key, made);
            found = earlier == null ? made : earlier;
        }
        return found;
    }

    private RLock make(String kind, String name) {
        return switch (kind) {
            case "lock" -> client.getLock(name);
            case "fair" -> client.getFairLock(name);
            case "read" -> client.getReadWriteLock(name).readLock();
            case "write" -> client.getReadWriteLock(name).writeLock();
            case "fenced" -> client.getFencedLock(name);
            case "spin" -> client.getSpinLock(name);
            case "multi" -> client.getMultiLock(Stream.of(name.split(","))
                .map(member -> member.split(":", 2))
                .map(parts -> find(parts[0], parts[1]))
                .toArray(RLock[]::new));
            default -> throw new IllegalArgumentException("unknown kind " + kind);
        };
    }

    private Object lock(Rival.Command command, RLock lock) throws InterruptedException, IOException {
        long wait = command.number("wait", -1);
        long lease = command.number("lease", -1);
        switch (command.op()) {
            case "lock" -> {
                if (command.has("lease")) {
                    lock.lock(lease, MILLISECONDS);
                } else {
                    lock.lock();
                }
                return null;
            }
            case "trylock" -> {
                if (command.has("lease")) {
                    return lock.tryLock(wait, lease, MILLISECONDS);
                }
                return command.has("wait") ? lock.tryLock(wait, MILLISECONDS) : lock.tryLock();
            }
            case "unlock" -> {
                lock.unlock();
                return null;
            }
            case "force" -> {
                return lock.forceUnlock();
            }
            case "delete" -> {
                return ((RObject) lock).delete();
            }
            case "status" -> {
                return status(command, lock);
            }
            case "token" -> {
                RFencedLock fenced = (RFencedLock) lock;
                return command.has("lease") ? fenced.lockAndGetToken(lease, MILLISECONDS) : fenced.lockAndGetToken();
            }
            case "trytoken" -> {
                RFencedLock fenced = (RFencedLock) lock;
                if (command.has("lease")) {
                    return fenced.tryLockAndGetToken(wait, lease, MILLISECONDS);
                }
                return command.has("wait")
                    ? fenced.tryLockAndGetToken(wait, MILLISECONDS) : fenced.tryLockAndGetToken();
            }
            case "gettoken" -> {
                return ((RFencedLock) lock).getToken();
            }
            case "hammer" -> {
                return hammer(command, lock);
            }
            default -> throw unknown(command);
        }
    }

    private static Object status(Rival.Command command, RLock lock) {
        Map<String, Object> status = new TreeMap<>();
        status.put("mine", lock.isHeldByCurrentThread());
        // A multi lock knows nothing else of itself.
        if (!command.kind().equals("multi")) {
            status.put("locked", lock.isLocked());
            status.put("count", lock.getHoldCount());
            status.put("ttl", lock.remainTimeToLive());
        }
        return status;
    }

    private Object hammer(Rival.Command command, RLock lock) throws IOException {
        long rounds = command.number("rounds", Long.MAX_VALUE);
        long deadline = command.has("for")
            ? Rival.now() + MILLISECONDS.toNanos(command.number("for", 0)) : Long.MAX_VALUE;
        long lease = command.number("lease", -1);
        // What a hold is good for when nobody renews it any more.
        long nanos = MILLISECONDS.toNanos(lease > 0 ? lease : client.getConfig().getLockWatchdogTimeout());
        long done = 0;
        long longest = 0;
        long waited = 0;
        try (Sections sections = new Sections(command)) {
            while (done < rounds && Rival.now() < deadline) {
                long asked = Rival.now();
                long token = -1;
                if (command.kind().equals("fenced")) {
                    token = ((RFencedLock) lock).lockAndGetToken();
                } else if (lease > 0) {
                    lock.lock(lease, MILLISECONDS);
                } else {
                    lock.lock();
                }
                long entered = Rival.now();
                sections.enter(token, entered, asked + nanos);
                try {
                    pause(command.number("hold_us", 0));
                } finally {
                    sections.leave(token, Rival.now(), lease > 0 ? asked + nanos : Long.MAX_VALUE);
                    lock.unlock();
                }
                done++;
                longest = Math.max(longest, entered - asked);
                waited += entered - asked;
                pause(command.number("pause_us", 0));
            }
        }
        return new TreeMap<>(Map.of("rounds", done, "longest", longest, "waited", waited));
    }

    private static void pause(long micros) {
        long end = System.nanoTime() + micros * 1000;
        for (long left = micros * 1000; left > 0; left = end - System.nanoTime()) {
            LockSupport.parkNanos(left);
        }
    }

    private static Object semaphore(Rival.Command command, RPermitExpirableSemaphore semaphore)
        throws InterruptedException {
        long wait = command.number("wait", -1);
        long lease = command.number("lease", -1);
        String id = command.options().get("id");
        switch (command.op()) {
            case "permits" -> {
                return semaphore.trySetPermits(Math.toIntExact(command.number("n", 1)));
            }
            case "acquire" -> {
                return command.has("lease") ? semaphore.acquire(lease, MILLISECONDS) : semaphore.acquire();
            }
            case "tryacquire" -> {
                if (command.has("lease")) {
                    return semaphore.tryAcquire(wait, lease, MILLISECONDS);
                }
                return command.has("wait") ? semaphore.tryAcquire(wait, MILLISECONDS) : semaphore.tryAcquire();
            }
            case "release" -> {
                semaphore.release(id);
                return null;
            }
            case "tryrelease" -> {
                return semaphore.tryRelease(id);
            }
            case "extend" -> {
                return semaphore.updateLeaseTime(id, lease, MILLISECONDS);
            }
            case "available" -> {
                return semaphore.availablePermits();
            }
            default -> throw unknown(command);
        }
    }

    private static Object latch(Rival.Command command, RCountDownLatch latch) throws InterruptedException {
        switch (command.op()) {
            case "setcount" -> {
                return latch.trySetCount(command.number("n", 1));
            }
            case "countdown" -> {
                latch.countDown();
                return null;
            }
            case "await" -> {
                if (command.has("wait")) {
                    return latch.await(command.number("wait", 0), MILLISECONDS);
                }
                latch.await();
                return null;
            }
            case "count" -> {
                return latch.getCount();
            }
            default -> throw unknown(command);
        }
    }

    private static IllegalArgumentException unknown(Rival.Command command) {
        return new IllegalArgumentException("unknown operation " + command.op() + " of " + command.kind());
    }

    /** Writes sections as {@code tests/src/overlap.rs} reads them: one line, one write, at the end of a common file. */
    private static final class Sections implements AutoCloseable {
        private final FileOutputStream file;
        private final String key;
        private String id;

        Sections(Rival.Command command) throws IOException {
            file = command.has("log") ? new FileOutputStream(command.options().get("log"), true) : null;
            key = command.name();
        }

        void enter(long token, long now, long validUntil) throws IOException {
            id = ProcessHandle.current().pid() + "-java-" + SECTIONS.getAndIncrement();
            write("enter", token, now, validUntil);
        }

        void leave(long token, long now, long validUntil) throws IOException {
            write("leave", token, now, validUntil);
        }

        private void write(String event, long token, long now, long validUntil) throws IOException {
            if (file != null) {
                String shown = token < 0 ? "-" : String.valueOf(token);
                String line = String.join(" ", event, id, key, shown, String.valueOf(now), String.valueOf(validUntil));
                file.write((line + "\n").getBytes(StandardCharsets.UTF_8));
            }
        }

        @Override
        public void close() throws IOException {
            if (file != null) {
                file.close();
            }
        }
    }
}
