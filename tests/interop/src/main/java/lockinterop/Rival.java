package lockinterop;

import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;

import org.redisson.Redisson;
import org.redisson.api.RedissonClient;
import org.redisson.config.Config;

/**
 * A Java program that takes locks on command: Redisson's own client as the rival in the tests. To start a JVM takes longer
 * than most tests, so that one of them serves several, each with a client of its own: a session.
 *
 * <p>Start arguments, {@code name=value} each:
 *
 * <pre>
 * clock=NS          added to System.nanoTime() in all stamps, so that they are on the tests' own clock
 * wall=MS           added to the wall clock that Redisson reads (needs the agent, see WallClock)
 * </pre>
 *
 * <p>Then it takes one command a line. A session is a word:
 *
 * <pre>
 * ID - open SESSION name=value..    connects a client, and answers with its id as {@code client}:
 *     single=URL | cluster=URL,URL,.. | sentinel=MASTER@URL,URL,..   the servers
 *     watchdog=MS                   lockWatchdogTimeout
 *     fair_wait=MS                  fairLockWaitTimeout
 * ID SESSION/THREAD OP KIND NAME [option=value]..
 * </pre>
 *
 * <p>A thread is made when it is first named. Commands of one thread run one after the other, threads run side by
 * side, so answers come as they are ready. {@link Commands} has the operations. Without a thread of its own:
 *
 * <pre>
 * ID - interrupt SESSION/THREAD     interrupts what that thread does
 * ID - parked SESSION/THREAD        whether that thread sleeps until a message comes: true or false
 * ID - wall MS                      sets the offset of the wall clock
 * ID - close SESSION                ends a session in good order
 * ID - exit                         ends in good order, as does the end of the input
 * </pre>
 *
 * <p>Answers are lines of JSON: {@code id}, {@code owner} (the field of the thread in lock hashes), {@code start} and
 * {@code end} (ns) and {@code value}, or {@code error} (the exception's class) and {@code message}.
 */
public final class Rival {
    private static long clockOffset;

    private Rival() {
    }

    public static void main(String[] arguments) {
        try {
            serve(arguments);
            System.exit(0);
        } catch (Throwable e) {
            // Redisson's threads would keep a program alive that has failed.
            e.printStackTrace();
            System.exit(1);
        }
    }

    private static void serve(String[] arguments) throws IOException {
        Map<String, String> settings = options(Arrays.asList(arguments));
        clockOffset = Long.parseLong(settings.getOrDefault("clock", "0"));
        WallClock.setOffset(Long.parseLong(settings.getOrDefault("wall", "0")));
        Map<String, Session> sessions = new ConcurrentHashMap<>();

        BufferedReader input = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = input.readLine(); line != null; line = input.readLine()) {
            List<String> words = List.of(line.trim().split(" +"));
            if (words.size() < 3) {
                throw new IllegalArgumentException("not a command: " + line);
            }
            long id = Long.parseLong(words.get(0));
            if (!words.get(1).equals("-")) {
                Command command = new Command(id, words.get(2), words.get(3), words.get(4),
                    options(words.subList(5, words.size())));
                worker(sessions, words.get(1)).queue.add(command);
                continue;
            }
            switch (words.get(2)) {
                case "open" -> {
                    // To connect takes a while, in which others go on.
                    new Thread(() -> open(sessions, id, words)).start();
                    continue;
                }
                case "close" -> {
                    new Thread(() -> {
                        Session session = sessions.remove(words.get(3));
                        if (session != null) {
                            session.close();
                        }
                        answer(Map.of("id", id));
                    }).start();
                    continue;
                }
                case "parked" -> {
                    answer(Map.of("id", id, "value", worker(sessions, words.get(3)).isParked()));
                    continue;
                }
                case "interrupt" -> worker(sessions, words.get(3)).interrupt();
                case "wall" -> WallClock.setOffset(Long.parseLong(words.get(3)));
                case "exit" -> {
                    answer(Map.of("id", id));
                    sessions.values().forEach(Session::close);
                    return;
                }
                default -> throw new IllegalArgumentException("not a command: " + line);
            }
            answer(Map.of("id", id));
        }
        sessions.values().forEach(Session::close);
    }

    private static void open(Map<String, Session> sessions, long id, List<String> words) {
        Map<String, Object> answer = new TreeMap<>();
        answer.put("id", id);
        try {
            Session session = new Session(Redisson.create(config(options(words.subList(4, words.size())))));
            sessions.put(words.get(3), session);
            answer.put("client", session.client.getId());
        } catch (Throwable e) {
            answer.put("error", e.getClass().getName());
            answer.put("message", String.valueOf(e.getMessage()));
        }
        answer(answer);
    }

    /** The thread {@code SESSION/THREAD}. */
    private static Worker worker(Map<String, Session> sessions, String place) {
        String[] parts = place.split("/", 2);
        Session session = sessions.get(parts[0]);
        if (parts.length != 2 || session == null) {
            throw new IllegalArgumentException("no such session: " + place);
        }
        return session.workers.computeIfAbsent(parts[1], name -> new Worker(place, session.commands));
    }

    /** A client, its locks and its threads. */
    private static final class Session {
        private final RedissonClient client;
        private final Commands commands;
        private final Map<String, Worker> workers = new ConcurrentHashMap<>();

        Session(RedissonClient client) {
            this.client = client;
            this.commands = new Commands(client);
        }

        void close() {
            workers.values().forEach(worker -> worker.queue.add(Worker.END));
            client.shutdown(0, 2, TimeUnit.SECONDS);
            // What still waits gets no message any more.
            workers.values().forEach(Thread::interrupt);
        }
    }

    /** The tests' clock. */
    static long now() {
        return System.nanoTime() + clockOffset;
    }

    private static synchronized void answer(Map<String, Object> answer) {
        System.out.println(Json.of(answer));
    }

    private static Config config(Map<String, String> settings) {
        Config config = new Config();
        config.setThreads(4);
        config.setNettyThreads(4);
        if (settings.containsKey("watchdog")) {
            config.setLockWatchdogTimeout(Long.parseLong(settings.get("watchdog")));
        }
        if (settings.containsKey("fair_wait")) {
            config.setFairLockWaitTimeout(Long.parseLong(settings.get("fair_wait")));
        }
        // Few connections at the start: it is quicker, and more are made when they are wanted.
        if (settings.containsKey("single")) {
            config.useSingleServer()
                .setAddress(settings.get("single"))
                .setDnsMonitoringInterval(-1)
                .setConnectionMinimumIdleSize(1);
        } else if (settings.containsKey("cluster")) {
            config.useClusterServers()
                .addNodeAddress(settings.get("cluster").split(","))
                .setMasterConnectionMinimumIdleSize(1)
                .setSlaveConnectionMinimumIdleSize(1);
        } else if (settings.containsKey("sentinel")) {
            String[] parts = settings.get("sentinel").split("@", 2);
            config.useSentinelServers()
                .setMasterName(parts[0])
                .addSentinelAddress(parts[1].split(","))
                .setMasterConnectionMinimumIdleSize(1)
                .setSlaveConnectionMinimumIdleSize(1);
        } else {
            throw new IllegalArgumentException("which servers? single=, cluster= or sentinel=");
        }
        return config;
    }

    private static Map<String, String> options(List<String> words) {
        Map<String, String> options = new HashMap<>();
        for (String word : words) {
            String[] parts = word.split("=", 2);
            if (parts.length != 2) {
                throw new IllegalArgumentException("not an option: " + word);
            }
            options.put(parts[0], parts[1]);
        }
        return options;
    }

    /** What a thread is to do. */
    record Command(long id, String op, String kind, String name, Map<String, String> options) {
        long number(String option, long otherwise) {
            String value = options.get(option);
            return value == null ? otherwise : Long.parseLong(value);
        }

        boolean has(String option) {
            return options.containsKey(option);
        }
    }

    /** A named thread and its commands. */
    private static final class Worker extends Thread {
        /** Ends the thread. */
        static final Command END = new Command(0, "", "", "", Map.of());

        private final BlockingQueue<Command> queue = new LinkedBlockingQueue<>();
        private final transient Commands commands;

        Worker(String name, Commands commands) {
            super(name);
            this.commands = commands;
            setDaemon(true);
            start();
        }

        /** Whether it sleeps in the semaphore that messages release, which is where Redisson's waiters end up. */
        boolean isParked() {
            boolean waits = Arrays.stream(getStackTrace())
                .anyMatch(frame -> frame.getClassName().equals("java.util.concurrent.Semaphore"));
            return waits && (getState() == State.WAITING || getState() == State.TIMED_WAITING);
        }

        @Override
        public void run() {
            while (true) {
                Command command;
                try {
                    command = queue.take();
                } catch (InterruptedException e) {
                    continue;
                }
                if (command == END) {
                    return;
                }
                Map<String, Object> answer = new TreeMap<>();
                answer.put("id", command.id());
                answer.put("owner", commands.owner());
                answer.put("start", now());
                try {
                    answer.put("value", commands.run(command));
                } catch (Throwable e) {
                    answer.put("error", e.getClass().getName());
                    answer.put("message", String.valueOf(e.getMessage()));
                }
                answer.put("end", now());
                answer(answer);
            }
        }
    }
}
