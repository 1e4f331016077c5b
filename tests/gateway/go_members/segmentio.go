package main

import (
	"context"
	"errors"
	"time"

	"github.com/segmentio/kafka-go"
)

func segmentio(ctx context.Context, bootstrap, group, topic string) error {
	joined, err := kafka.NewConsumerGroup(kafka.ConsumerGroupConfig{
		ID:                group,
		Brokers:           []string{bootstrap},
		Topics:            []string{topic},
		StartOffset:       kafka.FirstOffset,
		GroupBalancers:    []kafka.GroupBalancer{kafka.RangeGroupBalancer{}},
		SessionTimeout:    sessionTimeout,
		HeartbeatInterval: heartbeatInterval,
		JoinGroupBackoff:  200 * time.Millisecond,
	})
	if err != nil {
		return err
	}
	for ctx.Err() == nil {
		generation, err := joined.Next(ctx)
		if err != nil {
			if !errors.Is(err, context.Canceled) {
				println("next:", err.Error())
			}
			continue
		}
		partitions := []int32{}
		for _, each := range generation.Assignments[topic] {
			partitions = append(partitions, int32(each.ID))
		}
		show("assigned", topic, partitions)
		generation.Start(func(ending context.Context) {
			<-ending.Done()
			show("revoked", topic, partitions)
		})
		for _, each := range generation.Assignments[topic] {
			generation.Start(func(ending context.Context) { readFrom(ending, generation, bootstrap, topic, each) })
		}
	}
	return joined.Close()
}

func readFrom(
	ctx context.Context, generation *kafka.Generation, bootstrap, topic string, at kafka.PartitionAssignment,
) {
	reader := kafka.NewReader(kafka.ReaderConfig{
		Brokers: []string{bootstrap}, Topic: topic, Partition: at.ID, MaxWait: 100 * time.Millisecond,
	})
	defer reader.Close()
	if err := reader.SetOffset(at.Offset); err != nil {
		println("offset:", err.Error())
		return
	}
	for {
		message, err := reader.ReadMessage(ctx)
		if err != nil {
			return
		}
		showRead(topic, int32(message.Partition), message.Offset)
		committed := map[string]map[int]int64{topic: {message.Partition: message.Offset + 1}}
		if err := generation.CommitOffsets(committed); err != nil {
			println("commit:", err.Error())
		}
	}
}
