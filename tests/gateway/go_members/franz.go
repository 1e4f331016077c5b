package main

import (
	"context"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

func franz(ctx context.Context, bootstrap, group, topic string) error {
	revoked := func(_ context.Context, _ *kgo.Client, lost map[string][]int32) { show("revoked", topic, lost[topic]) }
	client, err := kgo.NewClient(
		kgo.SeedBrokers(bootstrap),
		kgo.ConsumerGroup(group),
		kgo.ConsumeTopics(topic),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.Balancers(kgo.RangeBalancer()),
		kgo.SessionTimeout(sessionTimeout),
		kgo.HeartbeatInterval(heartbeatInterval),
		kgo.DisableAutoCommit(),
		kgo.BlockRebalanceOnPoll(),
		kgo.OnPartitionsAssigned(func(_ context.Context, _ *kgo.Client, assigned map[string][]int32) {
			show("assigned", topic, assigned[topic])
		}),
		kgo.OnPartitionsRevoked(revoked),
		kgo.OnPartitionsLost(revoked),
	)
	if err != nil {
		return err
	}
	defer client.CloseAllowingRebalance()
	for ctx.Err() == nil {
		soon, cancel := context.WithTimeout(ctx, 100*time.Millisecond)
		fetches := client.PollFetches(soon)
		cancel()
		fetches.EachRecord(func(each *kgo.Record) { showRead(topic, each.Partition, each.Offset) })
		if !fetches.Empty() {
			if err := client.CommitUncommittedOffsets(context.Background()); err != nil {
				println("commit:", err.Error())
			}
		}
		client.AllowRebalance()
	}
	return nil
}
