// What the reference does with a log, and nothing else: one line at a time, without the kubelet's stamp, captures by Go's
// regexp.
// go_regexp LOG PATTERNS RUNS prints the CPU seconds of the fastest run and the hits.
package main

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"time"
)

func main() {
	log, err := os.ReadFile(os.Args[1])
	check(err)
	source, err := os.ReadFile(os.Args[2])
	check(err)
	runs, err := strconv.Atoi(os.Args[3])
	check(err)
	var patterns []*regexp.Regexp
	for _, line := range strings.Split(string(source), "\n") {
		patterns = append(patterns, regexp.MustCompile(line))
	}
	fastest, hits := time.Duration(1<<62), 0
	for range runs {
		hits = 0
		start := cpuTime()
		scanner := bufio.NewScanner(bytes.NewReader(log))
		scanner.Buffer(make([]byte, 64*1024), 1024*1024)
		for scanner.Scan() {
			_, line, _ := bytes.Cut(scanner.Bytes(), []byte(" "))
			for _, pattern := range patterns {
				if pattern.FindSubmatch(line) != nil {
					hits++
				}
			}
		}
		check(scanner.Err())
		fastest = min(fastest, cpuTime()-start)
	}
	fmt.Println(fastest.Seconds(), hits)
}

func cpuTime() time.Duration {
	var used syscall.Rusage
	check(syscall.Getrusage(syscall.RUSAGE_SELF, &used))
	return time.Duration(used.Utime.Nano() + used.Stime.Nano())
}

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
