package main

import (
	"flag"
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"
)

func sleep(args []string) error {
	flags := flag.NewFlagSet("sleep", flag.ExitOnError)
	onTerm := flags.Duration("on-term", 0, "how long to go on after SIGTERM")
	flags.Parse(args)
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGTERM)
	fmt.Println("waiting")
	<-signals
	fmt.Println("got SIGTERM")
	time.Sleep(*onTerm)
	fmt.Println("done")
	return nil
}

func eat(args []string) error {
	if len(args) != 1 {
		return fmt.Errorf("eat: want MiB")
	}
	mib, err := strconv.Atoi(args[0])
	if err != nil {
		return err
	}
	var kept [][]byte
	for range mib {
		block := make([]byte, 1<<20)
		for i := 0; i < len(block); i += 4096 {
			block[i] = 1
		}
		kept = append(kept, block)
	}
	fmt.Println("ate", len(kept), "MiB")
	time.Sleep(1 << 62) // not select {}, which the runtime takes for a deadlock
	runtime.KeepAlive(kept)
	return nil
}

func exit(args []string) error {
	if len(args) < 1 {
		return fmt.Errorf("exit: want a code")
	}
	code, err := strconv.Atoi(args[0])
	if err != nil {
		return err
	}
	if len(args) > 1 {
		after, err := time.ParseDuration(args[1])
		if err != nil {
			return err
		}
		time.Sleep(after)
	}
	fmt.Println("exit", code)
	os.Exit(code)
	return nil
}

func printLines(args []string) error {
	flags := flag.NewFlagSet("print", flag.ExitOnError)
	every := flags.Duration("every", 200*time.Millisecond, "time between two lines")
	count := flags.Int("count", 0, "how many lines; 0 is no end")
	flags.Parse(args)
	for i := 1; *count == 0 || i <= *count; i++ {
		fmt.Println(strings.Join(flags.Args(), " "), i)
		time.Sleep(*every)
	}
	return nil
}
