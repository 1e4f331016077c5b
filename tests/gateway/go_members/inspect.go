package main

import (
	"context"
	"fmt"
	"sort"
	"time"

	"github.com/segmentio/kafka-go"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

const inspections = 5

// describing is a program with kafka-go's Client: each time, a new client asks about a group, and finds its coordinator
// in the list of brokers that it has just received.
func describing(ctx context.Context, bootstrap, group, topic string) error {
	for range inspections {
		client := &kafka.Client{Addr: kafka.TCP(bootstrap), Timeout: 30 * time.Second, Transport: &kafka.Transport{}}
		described, err := client.DescribeGroups(ctx, &kafka.DescribeGroupsRequest{GroupIDs: []string{group}})
		if err != nil {
			return err
		}
		offsets, err := client.OffsetFetch(ctx, &kafka.OffsetFetchRequest{GroupID: group, Topics: map[string][]int{topic: {0}}})
		if err != nil {
			return err
		}
		listed, err := client.ListGroups(ctx, &kafka.ListGroupsRequest{})
		if err != nil {
			return err
		}
		count := 0
		for _, each := range listed.Groups {
			if each.GroupID == group {
				count++
			}
		}
		committed := offsets.Topics[topic][0].CommittedOffset
		fmt.Println("found", described.Groups[0].GroupState, committed, count)
	}
	return nil
}

// exporting asks all brokers as kminion does for its metrics. An exporter cannot show anything that is found twice.
func exporting(ctx context.Context, bootstrap, group, topic string) error {
	client, err := kgo.NewClient(kgo.SeedBrokers(bootstrap), kgo.MetadataMinAge(10*time.Millisecond))
	if err != nil {
		return err
	}
	defer client.Close()
	for range inspections {
		counts := map[string]int{}
		listing := kmsg.NewPtrListGroupsRequest()
		err := shards(ctx, client, listing, func(answer kmsg.Response) {
			for _, each := range answer.(*kmsg.ListGroupsResponse).Groups {
				counts["listed "+each.Group]++
			}
		})
		if err != nil {
			return err
		}
		describing := kmsg.NewPtrDescribeGroupsRequest()
		describing.Groups = []string{group}
		err = shards(ctx, client, describing, func(answer kmsg.Response) {
			for _, each := range answer.(*kmsg.DescribeGroupsResponse).Groups {
				counts["described "+each.Group+" "+each.State]++
			}
		})
		if err != nil {
			return err
		}
		fetching := kmsg.NewPtrOffsetFetchRequest()
		fetching.Group = group
		offsets, err := fetching.RequestWith(ctx, client)
		if err == nil {
			err = kerr.ErrorForCode(offsets.ErrorCode)
		}
		if err != nil {
			return err
		}
		for _, each := range offsets.Topics {
			counts["committed "+each.Topic] += len(each.Partitions)
		}
		err = shards(ctx, client, kmsg.NewPtrDescribeLogDirsRequest(), func(answer kmsg.Response) {
			for _, dir := range answer.(*kmsg.DescribeLogDirsResponse).Dirs {
				for _, each := range dir.Topics {
					if each.Topic == topic {
						counts["stored "+topic] += len(each.Partitions)
					}
				}
			}
		})
		if err != nil {
			return err
		}
		client.ForceMetadataRefresh()
		names := []string{}
		for name := range counts {
			names = append(names, name)
		}
		sort.Strings(names)
		for _, name := range names {
			fmt.Println("found", name, counts[name])
		}
	}
	return nil
}

func shards(ctx context.Context, client *kgo.Client, request kmsg.Request, add func(kmsg.Response)) error {
	for _, each := range client.RequestSharded(ctx, request) {
		if each.Err != nil {
			return fmt.Errorf("broker %d: %w", each.Meta.NodeID, each.Err)
		}
		add(each.Resp)
	}
	return nil
}
