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
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;

import org.redisson.Redisson;
import org.redisson.api.RedissonClient;
import org.redisson.config.Config;

/**
 * A Java program that takes locks on command: Redisson's own client as the rival in the tests.
 *
 * <p>Start arguments, {@code name=value} each:
 *
 * <pre>
 * single=URL | cluster=URL,URL,.. | sentinel=MASTER@URL,URL,..   the servers
 * watchdog=MS       lockWatchdogTimeout
 * fair_wait=MS      fairLockWaitTimeout
 * clock=NS          added to System.nanoTime() in all stamps, so that they are on the tests' own clock
 * wall=MS           added to the wall clock that Redisson reads (needs the agent, see WallClock)
 * </pre>
 *
 * <p>Then it says {@code {"id":0,"client":UUID}} and takes one command a line:
 *
 * <pre>
 * ID THREAD OP KIND NAME [option=value]..
 * </pre>
 *
 * <p>A thread is made when it is first named. Commands of one thread run one after the other, threads run side by
 * side, so answers come as they are ready. {@link Commands} has the operations. Without a thread of its own:
 *
 * <pre>
 * ID - interrupt THREAD     interrupts what that thread does
 * ID - wall MS              sets the offset of the wall clock
 * ID - exit                 ends in good order, as does the end of the input
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
        RedissonClient client = Redisson.create(config(settings));
        Commands commands = new Commands(client);
        Map<String, Worker> workers = new HashMap<>();
        answer(Map.of("id", 0, "client", client.getId()));

        BufferedReader input = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = input.readLine(); line != null; line = input.readLine()) {
            List<String> words = List.of(line.trim().split(" +"));
            if (words.size() < 3) {
                throw new IllegalArgumentException("not a command: " + line);
            }
            long id = Long.parseLong(words.get(0));
            String thread = words.get(1);
            if (!thread.equals("-")) {
                Command command = new Command(id, words.get(2), words.get(3), words.get(4),
                    options(words.subList(5, words.size())));
                workers.computeIfAbsent(thread, name -> new Worker(name, commands)).queue.add(command);
                continue;
            }
            switch (words.get(2)) {
                case "interrupt" -> workers.get(words.get(3)).interrupt();
                case "wall" -> WallClock.setOffset(Long.parseLong(words.get(3)));
                case "exit" -> {
                    answer(Map.of("id", id));
                    client.shutdown(0, 2, TimeUnit.SECONDS);
                    return;
                }
                default -> throw new IllegalArgumentException("not a command: " + line);
            }
            answer(Map.of("id", id));
        }
        client.shutdown(0, 2, TimeUnit.SECONDS);
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
        private final BlockingQueue<Command> queue = new LinkedBlockingQueue<>();
        private final transient Commands commands;

        Worker(String name, Commands commands) {
            super(name);
            this.commands = commands;
            setDaemon(true);
            start();
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
