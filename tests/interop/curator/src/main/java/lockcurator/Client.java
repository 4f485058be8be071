package lockcurator;

import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;

import org.apache.curator.framework.CuratorFramework;
import org.apache.curator.framework.CuratorFrameworkFactory;
import org.apache.curator.framework.recipes.locks.InterProcessMutex;
import org.apache.curator.framework.recipes.locks.InterProcessReadWriteLock;
import org.apache.curator.framework.recipes.locks.InterProcessSemaphoreV2;
import org.apache.curator.framework.recipes.shared.SharedCount;
import org.apache.curator.retry.ExponentialBackoffRetry;

/** A client with a session, and its locks by their paths. Threads share it. */
final class Client {
    final CuratorFramework framework;
    private final Map<String, Mutex> mutexes = new ConcurrentHashMap<>();
    private final Map<String, InterProcessReadWriteLock> readWriteLocks = new ConcurrentHashMap<>();
    private final Map<String, InterProcessSemaphoreV2> semaphores = new ConcurrentHashMap<>();
    private final Map<String, SharedCount> permits = new ConcurrentHashMap<>();

    /** Connects, with a session of so many milliseconds. */
    Client(String servers, int session) throws InterruptedException {
        framework = CuratorFrameworkFactory.builder()
            .connectString(servers)
            .sessionTimeoutMs(session)
            // No longer than the session.
            .connectionTimeoutMs(session)
            .retryPolicy(new ExponentialBackoffRetry(50, 8, 1000))
            .build();
        framework.start();
        framework.blockUntilConnected();
    }

    void close() {
        framework.close();
    }

    Mutex mutex(String path) {
        return mutexes.computeIfAbsent(path, made -> new Mutex(framework, made));
    }

    InterProcessReadWriteLock readWriteLock(String path) {
        return readWriteLocks.computeIfAbsent(path, made -> new InterProcessReadWriteLock(framework, made));
    }

    InterProcessSemaphoreV2 semaphore(String path, int leases) {
        return semaphores.computeIfAbsent(path + " " + leases,
            made -> new InterProcessSemaphoreV2(framework, path, leases));
    }

    /** A semaphore whose number of permits is where those of lock-runtime are. */
    InterProcessSemaphoreV2 sharedSemaphore(String path) {
        return semaphores.computeIfAbsent(path,
            made -> new InterProcessSemaphoreV2(framework, path, permits(path)));
    }

    SharedCount permits(String path) {
        return permits.computeIfAbsent(path, made -> {
            SharedCount count = new SharedCount(framework, path + "/permits", 0);
            try {
                count.start();
            } catch (Exception e) {
                throw new IllegalStateException(e);
            }
            return count;
        });
    }

    long czxid(String node) throws Exception {
        return framework.checkExists().forPath(node).getCzxid();
    }

    /** A mutex that names the entry of the current thread. */
    static final class Mutex extends InterProcessMutex {
        Mutex(CuratorFramework framework, String path) {
            super(framework, path);
        }

        String node() {
            return getLockPath();
        }
    }
}
