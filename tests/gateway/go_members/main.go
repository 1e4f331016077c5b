// Members of a group, written with the three clients that Go programs use.
//
// Arguments: the client, the bootstrap server, the group and the topic. A member prints its partitions and messages, and
// commits what it has read. It leaves when it is asked to end.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"sort"
	"syscall"
	"time"
)

const (
	sessionTimeout    = 2 * time.Second
	heartbeatInterval = 300 * time.Millisecond
)

type member func(ctx context.Context, bootstrap, group, topic string) error

var members = map[string]member{"franz-go": franz, "kafka-go": segmentio, "sarama": ibm}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	asked := time.Now()
	context.AfterFunc(ctx, func() { asked = time.Now() })
	if err := members[os.Args[1]](ctx, os.Args[2], os.Args[3], os.Args[4]); err != nil {
		fmt.Println("failed", err)
		os.Exit(1)
	}
	fmt.Println("left", time.Since(asked).Milliseconds())
}

// show prints what happened to some partitions of a topic.
func show(what, topic string, partitions []int32) {
	names := []string{}
	for _, number := range partitions {
		names = append(names, fmt.Sprintf("%s-%d", topic, number))
	}
	sort.Strings(names)
	fmt.Println(what, names)
}

func showRead(topic string, partition int32, offset int64) {
	fmt.Printf("read %s-%d@%d\n", topic, partition, offset)
}
