// Command plain takes locks of redsync on command. Usage: plain URL...; a lock is on all of these
// servers. tests/src/plain/rival.rs has the commands.
package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"log"
	"math"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/go-redsync/redsync/v4"
	pools "github.com/go-redsync/redsync/v4/redis"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"
	"github.com/redis/go-redis/v9"
)

// Between two attempts, and after each round of `count`.
const retry = 10 * time.Millisecond

type rival struct {
	sync *redsync.Redsync
	held map[string]*redsync.Mutex
}

func main() {
	ctx := context.Background()
	var servers []pools.Pool
	for _, url := range os.Args[1:] {
		options, err := redis.ParseURL(url)
		check(err)
		client := redis.NewClient(options)
		check(client.Ping(ctx).Err())
		servers = append(servers, goredis.NewPool(client))
	}
	rival := rival{redsync.New(servers...), map[string]*redsync.Mutex{}}
	fmt.Println("ready")
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		fmt.Println(rival.run(ctx, strings.Fields(lines.Text())))
	}
	check(lines.Err())
}

func (r *rival) run(ctx context.Context, words []string) string {
	switch command, key := words[0], words[1]; command {
	case "acquire":
		return r.acquire(ctx, key, millis(words[2]), millis(words[3]))
	case "release":
		return answer(r.held[key].UnlockContext(ctx))("released")
	case "extend":
		redsync.WithExpiry(millis(words[2])).Apply(r.held[key])
		return answer(r.held[key].ExtendContext(ctx))("extended")
	case "count":
		times, err := strconv.Atoi(words[4])
		check(err)
		for ; times > 0; times-- {
			r.increment(ctx, key, millis(words[2]), words[3])
			time.Sleep(retry)
		}
		return "counted"
	default:
		return "!not a command: " + command
	}
}

func (r *rival) mutex(key string, lease time.Duration) *redsync.Mutex {
	return r.sync.NewMutex(
		key,
		redsync.WithExpiry(lease),
		redsync.WithTries(math.MaxInt),
		redsync.WithRetryDelay(retry),
		// By default a server has only a twentieth of the lease to answer.
		redsync.WithTimeoutFactor(0.5),
	)
}

func (r *rival) acquire(ctx context.Context, key string, lease, wait time.Duration) string {
	mutex := r.mutex(key, lease)
	var err error
	if wait == 0 {
		err = mutex.TryLockContext(ctx)
	} else {
		ctx, cancel := context.WithTimeout(ctx, wait)
		defer cancel()
		err = mutex.LockContext(ctx)
	}
	if err != nil {
		report(err)
		return "busy"
	}
	r.held[key] = mutex
	return "granted " + mutex.Value()
}

func (r *rival) increment(ctx context.Context, key string, lease time.Duration, path string) {
	mutex := r.mutex(key, lease)
	check(mutex.LockContext(ctx))
	text, err := os.ReadFile(path)
	check(err)
	number, err := strconv.Atoi(string(text))
	check(err)
	time.Sleep(time.Millisecond)
	check(os.WriteFile(path, []byte(strconv.Itoa(number+1)), 0o600))
	_, err = mutex.UnlockContext(ctx)
	check(err)
}

// Returns the answer to a command for a held lock: the given word, or `gone`.
func answer(ok bool, err error) func(word string) string {
	return func(word string) string {
		if ok {
			return word
		}
		report(err)
		return "gone"
	}
}

// Prints an error that is more than a refusal.
func report(err error) {
	var failure *redsync.RedisError
	if errors.As(err, &failure) {
		log.Print(err)
	}
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

func millis(word string) time.Duration {
	number, err := strconv.Atoi(word)
	check(err)
	return time.Duration(number) * time.Millisecond
}
