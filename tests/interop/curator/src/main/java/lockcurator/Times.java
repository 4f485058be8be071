package lockcurator;

import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.Callable;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.atomic.AtomicInteger;

import org.apache.curator.framework.recipes.locks.InterProcessMutex;

/** Measures mutexes for some time. Every answer is numbers, each after a blank. */
final class Times {
    private final Client client;
    private final Callable<Client> another;
    private final String path;
    private final int number;
    private final long end;

    Times(Client client, Callable<Client> another, String path, int number, long nanoseconds) {
        this.client = client;
        this.another = another;
        this.path = path;
        this.number = number;
        end = System.nanoTime() + nanoseconds;
    }

    private boolean isOver() {
        return System.nanoTime() - end >= 0;
    }

    /**
     * Takes and releases so many mutexes in turn. Returns the nanoseconds of each acquire and of each release, in turn.
     */
    StringBuilder pairs() throws Exception {
        List<InterProcessMutex> mutexes = new ArrayList<>();
        for (int key = 0; key < number; key++) {
            mutexes.add(client.mutex(path + "/" + key));
        }
        StringBuilder times = new StringBuilder();
        while (true) {
            for (InterProcessMutex mutex : mutexes) {
                long asked = System.nanoTime();
                if (isOver()) {
                    return times;
                }
                mutex.acquire();
                long granted = System.nanoTime();
                mutex.release();
                times.append(' ').append(granted - asked).append(' ').append(System.nanoTime() - granted);
            }
        }
    }

    /**
     * Holds a mutex for so many milliseconds while another client waits for it. Returns the nanoseconds from each release
     * to the other's grant.
     */
    StringBuilder handOffs() throws Exception {
        Client second = another.call();
        ExecutorService waiter = Executors.newSingleThreadExecutor();
        try {
            InterProcessMutex held = client.mutex(path);
            InterProcessMutex awaited = second.mutex(path);
            StringBuilder times = new StringBuilder();
            while (!isOver()) {
                held.acquire();
                Future<Long> granted = waiter.submit(() -> {
                    awaited.acquire();
                    long at = System.nanoTime();
                    awaited.release();
                    return at;
                });
                Thread.sleep(number);
                long freed = System.nanoTime();
                held.release();
                times.append(' ').append(granted.get() - freed);
            }
            return times;
        } finally {
            waiter.shutdown();
            second.close();
        }
    }

    /** Lets so many threads take and release a mutex. Returns how often each had it. */
    StringBuilder grants() throws Exception {
        InterProcessMutex mutex = client.mutex(path);
        AtomicInteger inside = new AtomicInteger();
        ExecutorService threads = Executors.newFixedThreadPool(number);
        try {
            List<Future<Integer>> all = new ArrayList<>();
            for (int thread = 0; thread < number; thread++) {
                all.add(threads.submit(() -> {
                    int times = 0;
                    while (!isOver()) {
                        mutex.acquire();
                        if (inside.incrementAndGet() > 1) {
                            throw new IllegalStateException("two holders");
                        }
                        inside.decrementAndGet();
                        // Those that still wait are served after the end.
                        times += isOver() ? 0 : 1;
                        mutex.release();
                    }
                    return times;
                }));
            }
            StringBuilder counts = new StringBuilder();
            for (Future<Integer> one : all) {
                counts.append(' ').append(one.get());
            }
            return counts;
        } finally {
            threads.shutdown();
        }
    }
}
