// A member of a group, written with kazoo-go as wvanbergen's consumer groups are.
//
// Arguments: the hosts of ZooKeeper, the group and the topic. A member prints the registrations that it has read, its
// partitions, and the committed offset of each new partition. Then it commits ten messages more. It leaves on SIGTERM.
// With a fourth argument, it commits one message after the other instead, and prints each commit that was acknowledged.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"os"
	"os/signal"
	"sort"
	"syscall"
	"time"

	"github.com/wvanbergen/kazoo-go"
)

const (
	sessionTimeout = 10 * time.Second
	longSession    = 40 * time.Second
	pause          = 50 * time.Millisecond
	attempts       = 20
	tenMessages    = 10
)

type member struct {
	zookeeper *kazoo.Kazoo
	group     *kazoo.Consumergroup
	instance  *kazoo.ConsumergroupInstance
	topic     string
	owned     map[int32]bool
	busy      bool
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1], os.Args[2], os.Args[3], len(os.Args) > 4); err != nil {
		fmt.Println("failed", err)
		os.Exit(1)
	}
	fmt.Println("left 0")
}

func run(ctx context.Context, hosts, group, topic string, busy bool) error {
	config := kazoo.NewConfig()
	config.Timeout, config.Logger = sessionTimeout, log.New(io.Discard, "", 0)
	if busy {
		config.Timeout = longSession
	}
	zookeeper, err := kazoo.NewKazooFromConnectionString(hosts, config)
	if err != nil {
		return err
	}
	defer zookeeper.Close()
	found := zookeeper.Consumergroup(group)
	m := &member{zookeeper, found, found.NewInstance(), topic, map[int32]bool{}, busy}
	if err := found.Create(); err != nil {
		return err
	}
	if err := m.instance.Register([]string{topic}); err != nil {
		return err
	}
	fmt.Println("registered", m.instance.ID)
	for ctx.Err() == nil {
		if err := m.rebalance(ctx); err != nil {
			return err
		}
	}
	for partition := range m.owned {
		if err := m.instance.ReleasePartition(topic, partition); err != nil {
			return err
		}
	}
	return m.instance.Deregister()
}

// rebalance gives up and claims partitions, and then waits until the instances of the group change.
func (m *member) rebalance(ctx context.Context) error {
	instances, changed, err := m.group.WatchInstances()
	if err != nil {
		return err
	}
	for _, instance := range instances {
		registration, err := instance.Registration()
		if errors.Is(err, kazoo.ErrInstanceNotRegistered) {
			continue
		}
		if err != nil {
			return fmt.Errorf("the registration of %s: %w", instance.ID, err)
		}
		fmt.Println("seen", instance.ID, registration.Subscription[m.topic])
	}
	share, err := m.share(instances)
	if err != nil {
		return err
	}
	if err := m.releaseAllBut(share); err != nil {
		return err
	}
	for partition := range share {
		if err := m.claim(ctx, partition); err != nil {
			return err
		}
	}
	if len(m.owned) < len(share) {
		return nil
	}
	select {
	case <-changed:
	case <-ctx.Done():
	}
	return nil
}

// share divides the partitions as wvanbergen's consumer groups do.
func (m *member) share(instances kazoo.ConsumergroupInstanceList) (map[int32]bool, error) {
	partitions, err := m.zookeeper.Topic(m.topic).Partitions()
	if err != nil {
		return nil, err
	}
	sort.Sort(instances)
	sort.Slice(partitions, func(i, j int) bool { return partitions[i].ID < partitions[j].ID })
	each, more := len(partitions)/len(instances), len(partitions)%len(instances)
	share, first := map[int32]bool{}, 0
	for position, instance := range instances {
		last := first + each
		if position < more {
			last++
		}
		if instance.ID == m.instance.ID {
			for _, partition := range partitions[first:last] {
				share[partition.ID] = true
			}
		}
		first = last
	}
	return share, nil
}

func (m *member) releaseAllBut(share map[int32]bool) error {
	for partition := range m.owned {
		if share[partition] {
			continue
		}
		if err := m.instance.ReleasePartition(m.topic, partition); err != nil {
			return err
		}
		delete(m.owned, partition)
		fmt.Printf("revoked [%s-%d]\n", m.topic, partition)
	}
	return nil
}

// claim waits until the owner of the partition releases it, or until the instances may have changed.
func (m *member) claim(ctx context.Context, partition int32) error {
	for attempt := 0; attempt < attempts && !m.owned[partition] && ctx.Err() == nil; attempt++ {
		err := m.instance.ClaimPartition(m.topic, partition)
		if errors.Is(err, kazoo.ErrPartitionClaimedByOther) {
			time.Sleep(pause)
			continue
		}
		if err != nil {
			return err
		}
		m.owned[partition] = true
		fmt.Printf("assigned [%s-%d]\n", m.topic, partition)
		return m.work(ctx, partition)
	}
	return nil
}

// work reads the committed offset and commits ten messages more.
func (m *member) work(ctx context.Context, partition int32) error {
	offset, err := m.group.FetchOffset(m.topic, partition)
	if err != nil {
		return err
	}
	if offset < 0 {
		offset = 0
	}
	fmt.Printf("read %s-%d@%d\n", m.topic, partition, offset)
	if m.busy {
		m.commitEach(ctx, partition, offset)
		return nil
	}
	return m.group.CommitOffset(m.topic, partition, offset+tenMessages)
}

// commitEach continues with the next message after an error: it is unknown whether the server has written the offset.
func (m *member) commitEach(ctx context.Context, partition int32, offset int64) {
	for ctx.Err() == nil {
		offset++
		if err := m.group.CommitOffset(m.topic, partition, offset); err != nil {
			time.Sleep(pause)
			continue
		}
		fmt.Printf("committed %s-%d@%d\n", m.topic, partition, offset)
	}
}
