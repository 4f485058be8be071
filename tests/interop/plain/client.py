"""redis-py's Lock on command. Usage: client.py URL; tests/src/plain/rival.rs has the commands."""

import sys
import time

import redis
from redis.exceptions import LockError

RETRY = 0.01  # seconds between two attempts, and after each round of `count`


def lock_of(client, key, lease):
    return client.lock(key, timeout=int(lease) / 1000 or None, sleep=RETRY)


def acquire(client, held, key, lease, wait):
    lock = lock_of(client, key, lease)
    if not lock.acquire(blocking=wait != "0", blocking_timeout=int(wait) / 1000):
        return "busy"
    held[key] = lock
    return "granted " + lock.local.token.decode()


def release(held, key):
    try:
        held.pop(key).release()
    except LockError:
        return "gone"
    return "released"


def extend(held, key, lease):
    try:
        held[key].extend(int(lease) / 1000, replace_ttl=True)
    except LockError:
        return "gone"
    return "extended"


def count(client, key, lease, path, times):
    for _ in range(int(times)):
        with lock_of(client, key, lease):
            with open(path) as file:
                number = int(file.read())
            time.sleep(0.001)
            with open(path, "w") as file:
                file.write(str(number + 1))
        time.sleep(RETRY)
    return "counted"


def main():
    (url,) = sys.argv[1:]
    client = redis.Redis.from_url(url)
    client.ping()
    print("ready", flush=True)
    held = {}
    for line in sys.stdin:
        command, *words = line.split()
        match command:
            case "acquire":
                answer = acquire(client, held, *words)
            case "release":
                answer = release(held, *words)
            case "extend":
                answer = extend(held, *words)
            case "count":
                answer = count(client, *words)
            case _:
                answer = "!not a command: " + line.strip()
        print(answer, flush=True)


main()
