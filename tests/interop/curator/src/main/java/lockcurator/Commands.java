package lockcurator;

import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Collection;
import java.util.Deque;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.Callable;
import java.util.concurrent.TimeUnit;

import org.apache.curator.framework.CuratorFramework;
import org.apache.curator.framework.recipes.locks.InterProcessLock;
import org.apache.curator.framework.recipes.locks.InterProcessMultiLock;
import org.apache.curator.framework.recipes.locks.InterProcessMutex;
import org.apache.curator.framework.recipes.locks.InterProcessReadWriteLock;
import org.apache.curator.framework.recipes.locks.InterProcessSemaphoreV2;
import org.apache.curator.framework.recipes.locks.Lease;

/** The commands of one thread, and the leases of semaphores that it holds. */
final class Commands {
    private final Client client;
    private final Callable<Client> another;
    private final Map<String, Deque<Lease>> leases = new HashMap<>();

    Commands(Client client, Callable<Client> another) {
        this.client = client;
        this.another = another;
    }

    /** Executes a command, and returns its answer. */
    String run(List<String> words) throws Exception {
        String path = words.size() > 1 ? words.get(1) : "";
        switch (words.get(0)) {
            case "lock" -> {
                Client.Mutex mutex = client.mutex(path);
                return acquire(mutex, mutex::node, wait(words, 2));
            }
            case "read" -> {
                InterProcessReadWriteLock.ReadLock lock = client.readWriteLock(path).readLock();
                return acquire(lock, lock::getLockPath, wait(words, 2));
            }
            case "write" -> {
                InterProcessReadWriteLock.WriteLock lock = client.readWriteLock(path).writeLock();
                return acquire(lock, lock::getLockPath, wait(words, 2));
            }
            case "multi" -> {
                return acquire(multi(path), client.mutex(path.split(",")[0])::node, wait(words, 2));
            }
            case "unlock" -> client.mutex(path).release();
            case "unmulti" -> multi(path).release();
            case "unread" -> client.readWriteLock(path).readLock().release();
            case "unwrite" -> client.readWriteLock(path).writeLock().release();
            case "downgrade" -> {
                InterProcessReadWriteLock lock = client.readWriteLock(path);
                String answer = acquire(lock.readLock(), lock.readLock()::getLockPath, -1);
                lock.writeLock().release();
                return answer;
            }
            case "semaphore" -> {
                var semaphore = client.semaphore(path, Integer.parseInt(words.get(2)));
                return lease(semaphore, path, wait(words, 3));
            }
            case "shared" -> {
                return lease(client.sharedSemaphore(path), path, wait(words, 2));
            }
            case "permits" -> {
                client.permits(path).setCount(Integer.parseInt(words.get(2)));
                return "set";
            }
            case "return" -> leases.get(path).pop().close();
            case "count" -> {
                Path file = Path.of(words.get(2));
                count(path, Integer.parseInt(words.get(3)),
                    () -> Files.readString(file),
                    number -> Files.writeString(file, number));
                return "counted";
            }
            case "count-node" -> {
                String node = words.get(2);
                CuratorFramework framework = client.framework;
                count(path, Integer.parseInt(words.get(3)),
                    () -> new String(framework.getData().forPath(node), StandardCharsets.UTF_8),
                    number -> framework.setData().forPath(node, number.getBytes(StandardCharsets.UTF_8)));
                return "counted";
            }
            case "participants" -> {
                return names("participants", client.mutex(path).getParticipantNodes());
            }
            case "delete" -> {
                client.framework.delete().forPath(path);
                return "deleted";
            }
            case "revoke" -> {
                // As `Revoker.attemptRevoke` does.
                client.framework.setData().forPath(path, "__REVOKE__".getBytes(StandardCharsets.UTF_8));
                return "revoked";
            }
            case "czxid" -> {
                return "czxid " + client.czxid(path);
            }
            case "session" -> {
                return "session " + client.framework.getZookeeperClient().getZooKeeper().getSessionId();
            }
            case "pairs", "hand-offs", "grants" -> {
                long nanoseconds = TimeUnit.MILLISECONDS.toNanos(Long.parseLong(words.get(3)));
                Times times = new Times(client, another, path, Integer.parseInt(words.get(2)), nanoseconds);
                return switch (words.get(0)) {
                    case "pairs" -> "took" + times.pairs();
                    case "hand-offs" -> "took" + times.handOffs();
                    default -> "granted" + times.grants();
                };
            }
            default -> throw new IllegalArgumentException("not a command: " + words);
        }
        return "released";
    }

    /** How many milliseconds to wait, or -1 for as long as it takes. */
    private static long wait(List<String> words, int at) {
        return words.size() > at ? Long.parseLong(words.get(at)) : -1;
    }

    /** Mutexes that are taken one after the other. */
    private InterProcessMultiLock multi(String paths) {
        List<InterProcessLock> mutexes = new ArrayList<>();
        for (String path : paths.split(",")) {
            mutexes.add(client.mutex(path));
        }
        return new InterProcessMultiLock(mutexes);
    }

    private String acquire(InterProcessLock lock, Callable<String> node, long wait) throws Exception {
        if (wait < 0) {
            lock.acquire();
        } else if (!lock.acquire(wait, TimeUnit.MILLISECONDS)) {
            return "busy";
        }
        return "granted " + client.czxid(node.call());
    }

    private String lease(InterProcessSemaphoreV2 semaphore, String path, long wait) throws Exception {
        Lease lease = wait < 0 ? semaphore.acquire() : semaphore.acquire(wait, TimeUnit.MILLISECONDS);
        if (lease == null) {
            return "busy";
        }
        leases.computeIfAbsent(path, unused -> new ArrayDeque<>()).push(lease);
        return "granted " + client.czxid(path + "/leases/" + lease.getNodeName());
    }

    private static String names(String first, Collection<String> nodes) {
        StringBuilder answer = new StringBuilder(first);
        nodes.forEach(node -> answer.append(' ').append(node.substring(node.lastIndexOf('/') + 1)));
        return answer.toString();
    }

    private interface Write {
        void write(String number) throws Exception;
    }

    /** Increments a number so slowly that only the mutex protects it. */
    private void count(String path, int times, Callable<String> read, Write write) throws Exception {
        InterProcessMutex mutex = client.mutex(path);
        for (int done = 0; done < times; done++) {
            mutex.acquire();
            try {
                int number = Integer.parseInt(read.call().trim());
                Thread.sleep(1);
                write.write(String.valueOf(number + 1));
            } finally {
                mutex.release();
            }
        }
    }
}
