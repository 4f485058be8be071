// node-redlock on command. Usage: client.mjs URL...; a lock is on all of these servers.
// tests/src/plain/rival.rs has the commands. A key may be several, with commas between them.

import { readFile, writeFile } from "node:fs/promises";
import { createInterface } from "node:readline";
import { setTimeout as sleep } from "node:timers/promises";
import { Redis } from "ioredis";
import Redlock, { ExecutionError, ResourceLockedError } from "redlock";

const RETRY = 10; // ms between two attempts, and after each round of `count`
const clients = process.argv.slice(2).map((url) => new Redis(url));
const redlock = new Redlock(clients, { retryCount: 0 });
const held = new Map();

for (const client of clients) {
  client.on("error", (error) => console.error(`${error}`));
}
redlock.on("error", (error) => {
  if (!(error instanceof ResourceLockedError)) {
    console.error(`${error}`);
  }
});

// Tries again until it succeeds or `end` comes. With its own retries, node-redlock keeps the keys
// that it got on a minority of the servers. Two waiters can then block everybody until their leases
// end. An acquisition without retries gives them back.
async function acquire(keys, lease, end) {
  for (;;) {
    try {
      return await redlock.acquire(keys.split(","), Number(lease));
    } catch (error) {
      if (!(error instanceof ExecutionError) || Date.now() >= end) {
        throw error;
      }
    }
    await sleep(RETRY * (0.5 + Math.random()));
  }
}

// Returns what `call` returns, or `otherwise` if most servers refuse.
async function unless(otherwise, call) {
  try {
    return await call();
  } catch (error) {
    if (error instanceof ExecutionError) {
      return otherwise;
    }
    throw error;
  }
}

const commands = {
  acquire: (key, lease, wait) =>
    unless("busy", async () => {
      const lock = await acquire(key, lease, Date.now() + Number(wait));
      held.set(key, lock);
      return `granted ${lock.value}`;
    }),
  release: (key) =>
    unless("gone", async () => {
      await held.get(key).release();
      return "released";
    }),
  extend: (key, lease) =>
    unless("gone", async () => {
      held.set(key, await held.get(key).extend(Number(lease)));
      return "extended";
    }),
  count: async (key, lease, path, times) => {
    for (let round = 0; round < times; round++) {
      const lock = await acquire(key, lease, Infinity);
      const number = Number(await readFile(path, "utf8"));
      await sleep(1);
      await writeFile(path, `${number + 1}`);
      await lock.release();
      await sleep(RETRY);
    }
    return "counted";
  },
};

await Promise.all(clients.map((client) => client.ping()));
console.log("ready");
for await (const line of createInterface({ input: process.stdin })) {
  const [command, ...words] = line.split(" ");
  console.log(command in commands ? await commands[command](...words) : `!not a command: ${line}`);
}
process.exit();
