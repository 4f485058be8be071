// Command concurrency takes locks of etcd's own Go client on command. Usage: concurrency ENDPOINT.
// tests/src/concurrency.rs has the commands.
package main

import (
	"bufio"
	"context"
	"fmt"
	"log"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
	recipes "go.etcd.io/etcd/client/v3/experimental/recipes"
)

// A caller with a session of its own, which executes its commands one after the other.
type caller struct {
	name    string
	client  *clientv3.Client
	session *concurrency.Session
	held    map[string]func() error
}

var output sync.Mutex

func say(words ...any) {
	output.Lock()
	defer output.Unlock()
	fmt.Println(words...)
}

func main() {
	client, err := clientv3.New(clientv3.Config{Endpoints: os.Args[1:], DialTimeout: 10 * time.Second})
	check(err)
	_, err = client.Get(context.Background(), "ready")
	check(err)
	say("ready")
	callers := map[string]chan []string{}
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		words := strings.Fields(lines.Text())
		commands, known := callers[words[0]]
		if !known {
			commands = make(chan []string, 8)
			callers[words[0]] = commands
			go (&caller{name: words[0], client: client, held: map[string]func() error{}}).serve(commands)
		}
		commands <- words[1:]
	}
	check(lines.Err())
}

func (c *caller) serve(commands chan []string) {
	for words := range commands {
		say(c.name, c.run(words[0], words[1], words[2:]))
	}
}

func (c *caller) run(command, key string, rest []string) string {
	switch command {
	case "lock", "read", "write":
		ttl, err := strconv.Atoi(rest[0])
		check(err)
		return fmt.Sprint("granted ", c.acquire(command, key, ttl))
	case "try":
		mutex := concurrency.NewMutex(c.open(60), key)
		if err := mutex.TryLock(context.Background()); err == concurrency.ErrLocked {
			return "busy"
		} else {
			check(err)
		}
		c.held[key] = func() error { return mutex.Unlock(context.Background()) }
		return fmt.Sprint("granted ", mutex.Header().Revision)
	case "release":
		check(c.held[key]())
		delete(c.held, key)
		return "released"
	case "count":
		times, err := strconv.Atoi(rest[1])
		check(err)
		for ; times > 0; times-- {
			c.increment(key, rest[0])
		}
		return "counted"
	default:
		return "!not a command: " + command
	}
}

// Returns the session, whose first caller says how long it lives.
func (c *caller) open(ttl int) *concurrency.Session {
	if c.session == nil {
		session, err := concurrency.NewSession(c.client, concurrency.WithTTL(ttl))
		check(err)
		c.session = session
	}
	return c.session
}

// Waits for the lock. Returns the revision of the grant, or 0 for readers and writers.
func (c *caller) acquire(kind, key string, ttl int) int64 {
	session := c.open(ttl)
	if kind == "lock" {
		mutex := concurrency.NewMutex(session, key)
		check(mutex.Lock(context.Background()))
		c.held[key] = func() error { return mutex.Unlock(context.Background()) }
		return mutex.Header().Revision
	}
	lock := recipes.NewRWMutex(session, key)
	if kind == "read" {
		check(lock.RLock())
		c.held[key] = lock.RUnlock
	} else {
		check(lock.Lock())
		c.held[key] = lock.Unlock
	}
	return 0
}

func (c *caller) increment(key, path string) {
	c.acquire("lock", key, 60)
	text, err := os.ReadFile(path)
	check(err)
	number, err := strconv.Atoi(string(text))
	check(err)
	time.Sleep(time.Millisecond)
	check(os.WriteFile(path, []byte(strconv.Itoa(number+1)), 0o600))
	check(c.held[key]())
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
