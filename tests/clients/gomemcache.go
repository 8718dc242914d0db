// SPDX-License-Identifier: BSD-2-Clause

// Gomemcache runs Go's gomemcache (text) against a running server:
// HOST PORT SOCKET UDP_PORT.
package main

import (
	"bytes"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/bradfitz/gomemcache/memcache"
)

var checks, wrong int

func same(got, want interface{}, what string) {
	checks++
	if got != want {
		wrong++
		fmt.Printf("wrong: %s: got %.80v, not %.80v\n", what, got, want)
	}
}

func value(c *memcache.Client, key string) string {
	item, err := c.Get(key)
	if err != nil {
		return err.Error()
	}
	return string(item.Value)
}

func wholeClient(c *memcache.Client, name string) {
	says := func(got, want interface{}, what string) { same(got, want, name+" "+what) }
	set := func(key, v string, flags uint32, seconds int32) error {
		return c.Set(&memcache.Item{Key: key, Value: []byte(v), Flags: flags, Expiration: seconds})
	}

	c.Timeout = 10 * time.Second
	says(c.FlushAll(), nil, "flush all")
	says(set("a", "value", 0xdeadbeef, 0), nil, "set")
	item, err := c.Get("a")
	says(err, nil, "get")
	says(string(item.Value), "value", "value of get")
	says(item.Flags, uint32(0xdeadbeef), "flags of get")
	_, err = c.Get("missing")
	says(err, memcache.ErrCacheMiss, "get of a missing key")
	everything := make([]byte, 256)
	for i := range everything {
		everything[i] = byte(i)
	}
	all := string(everything) + "\r\nEND\r\n"
	says(set("bytes", all, 0, 0), nil, "set of all byte values")
	says(value(c, "bytes"), all, "get of all byte values")
	says(set("empty", "", 0, 0), nil, "set of nothing")
	says(value(c, "empty"), "", "get of nothing")
	large := strings.Repeat(all, 3900)
	says(set("large", large, 0, 0), nil, "set of a large value")
	says(value(c, "large") == large, true, "get of a large value")
	long := strings.Repeat("k", 250)
	says(set(long, "long", 0, 0), nil, "set, key of 250 bytes")
	says(value(c, long), "long", "get, key of 250 bytes")

	says(c.Add(&memcache.Item{Key: "a", Value: []byte("no")}), memcache.ErrNotStored, "add of a present key")
	says(c.Add(&memcache.Item{Key: "new", Value: []byte("b")}), nil, "add")
	says(c.Replace(&memcache.Item{Key: "gone", Value: []byte("x")}), memcache.ErrNotStored,
		"replace of a missing key")
	says(c.Replace(&memcache.Item{Key: "new", Value: []byte("B")}), nil, "replace")

	item, err = c.Get("new")
	says(err, nil, "get with cas")
	stale := *item
	item.Value = []byte("1")
	says(c.CompareAndSwap(item), nil, "cas")
	says(c.CompareAndSwap(&stale), memcache.ErrCASConflict, "old cas")
	says(value(c, "new"), "1", "value after cas")
	says(c.Delete("new"), nil, "delete")
	says(c.Delete("new"), memcache.ErrCacheMiss, "delete of a missing key")
	says(c.CompareAndSwap(&stale), memcache.ErrCacheMiss, "cas of a missing key")

	says(set("n", "10", 0, 0), nil, "set of a number")
	n, err := c.Increment("n", 5)
	says(n, uint64(15), "increment")
	says(err, nil, "increment's error")
	n, _ = c.Decrement("n", 20)
	says(n, uint64(0), "decrement stops at 0")
	_, err = c.Increment("gone", 1)
	says(err, memcache.ErrCacheMiss, "increment of a missing key")
	says(set("n", "word", 0, 0), nil, "set of a word")
	_, err = c.Increment("n", 1)
	says(err != nil, true, "increment of a word")
	says(value(c, "n"), "word", "the word is still there")

	var keys []string
	for i := 0; i < 300; i++ {
		keys = append(keys, fmt.Sprintf("m%d", i))
		says(set(keys[i], "value of "+keys[i], uint32(i), 0), nil, "set before get multi")
	}
	many, err := c.GetMulti(append(keys, "gone"))
	says(err, nil, "get multi")
	says(len(many), 300, "items of get multi")
	for i, key := range keys {
		item := many[key]
		says(item != nil && bytes.Equal(item.Value, []byte("value of "+key)) && item.Flags == uint32(i),
			true, "get multi of "+key)
	}

	says(set("t1", "x", 0, 1), nil, "set for 1 s")
	says(set("t2", "x", 0, 1), nil, "set for 1 s, to be touched")
	says(c.Touch("t2", 100), nil, "touch")
	says(c.Touch("gone", 100), memcache.ErrCacheMiss, "touch of a missing key")
	time.Sleep(2200 * time.Millisecond)
	says(value(c, "t1"), memcache.ErrCacheMiss.Error(), "value after it has expired")
	says(value(c, "t2"), "x", "touched value")

	// Many goroutines at once: each number is handed out exactly once.
	says(set("ticket", "0", 0, 0), nil, "set before parallel increments")
	seen := make([]bool, 801)
	var lock sync.Mutex
	var group sync.WaitGroup
	for g := 0; g < 8; g++ {
		group.Add(1)
		go func() {
			defer group.Done()
			for i := 0; i < 100; i++ {
				n, err := c.Increment("ticket", 1)
				lock.Lock()
				says(err == nil && n <= 800 && !seen[n], true, "parallel increment")
				seen[n%801] = true
				lock.Unlock()
			}
		}()
	}
	group.Wait()
	says(value(c, "ticket"), "800", "value after parallel increments")
	says(c.DeleteAll(), nil, "delete all")
	says(value(c, "a"), memcache.ErrCacheMiss.Error(), "get after delete all")
}

func main() {
	if len(os.Args) != 5 {
		fmt.Fprintln(os.Stderr, "usage: gomemcache HOST PORT SOCKET UDP_PORT")
		os.Exit(2)
	}
	wholeClient(memcache.New(os.Args[1]+":"+os.Args[2]), "tcp")
	wholeClient(memcache.New(os.Args[3]), "unix")
	fmt.Printf("%d checks, %d wrong\n", checks, wrong)
	if wrong > 0 {
		os.Exit(1)
	}
}
