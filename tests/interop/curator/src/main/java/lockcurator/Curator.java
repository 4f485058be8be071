package lockcurator;

import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.LinkedBlockingQueue;

/**
 * Takes locks with Curator's recipes on command. tests/src/curator.rs has the arguments and the commands.
 */
public final class Curator {
    private Curator() {
    }

    public static void main(String[] arguments) {
        try {
            serve(arguments[0], Integer.parseInt(arguments[1]));
            System.exit(0);
        } catch (Throwable e) {
            // Curator's threads would keep a program alive that has failed.
            e.printStackTrace();
            System.exit(1);
        }
    }

    private static void serve(String servers, int session) throws IOException, InterruptedException {
        Map<String, Client> clients = new HashMap<>();
        Map<String, Caller> callers = new HashMap<>();
        // The first client is ready before its first command.
        clients.put("a", new Client(servers, session));
        say("ready");
        BufferedReader input = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = input.readLine(); line != null; line = input.readLine()) {
            List<String> words = List.of(line.trim().split(" +"));
            String name = words.get(0);
            Caller caller = callers.get(name);
            if (caller == null) {
                String key = name.split("/", 2)[0];
                if (!clients.containsKey(key)) {
                    clients.put(key, new Client(servers, session));
                }
                caller = new Caller(name, new Commands(clients.get(key), () -> new Client(servers, session)));
                callers.put(name, caller);
            }
            caller.commands.add(words.subList(1, words.size()));
        }
        // Their locks end with their sessions.
        clients.values().forEach(Client::close);
    }

    private static synchronized void say(String line) {
        System.out.println(line);
    }

    /** A thread that executes its commands one after the other. */
    private static final class Caller extends Thread {
        private final transient BlockingQueue<List<String>> commands = new LinkedBlockingQueue<>();
        private final transient Commands own;

        Caller(String name, Commands own) {
            super(name);
            this.own = own;
            setDaemon(true);
            start();
        }

        @Override
        public void run() {
            while (true) {
                String answer;
                try {
                    answer = own.run(commands.take());
                } catch (Exception e) {
                    answer = "failed " + e;
                }
                say(getName() + " " + answer.replace('\n', ' '));
            }
        }
    }
}
