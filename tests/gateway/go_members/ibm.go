package main

import (
	"context"

	"github.com/IBM/sarama"
)

type claims struct{ topic string }

func (c claims) Setup(session sarama.ConsumerGroupSession) error {
	show("assigned", c.topic, session.Claims()[c.topic])
	return nil
}

func (c claims) Cleanup(session sarama.ConsumerGroupSession) error {
	show("revoked", c.topic, session.Claims()[c.topic])
	return nil
}

func (c claims) ConsumeClaim(session sarama.ConsumerGroupSession, claim sarama.ConsumerGroupClaim) error {
	for {
		select {
		case message, open := <-claim.Messages():
			if !open {
				return nil
			}
			showRead(c.topic, message.Partition, message.Offset)
			session.MarkMessage(message, "")
			session.Commit()
		case <-session.Context().Done():
			return nil
		}
	}
}

func ibm(ctx context.Context, bootstrap, group, topic string) error {
	config := sarama.NewConfig()
	config.Version = sarama.V1_1_0_0
	config.Consumer.Group.Session.Timeout = sessionTimeout
	config.Consumer.Group.Heartbeat.Interval = heartbeatInterval
	config.Consumer.Group.Rebalance.GroupStrategies = []sarama.BalanceStrategy{sarama.NewBalanceStrategyRange()}
	config.Consumer.Offsets.Initial = sarama.OffsetOldest
	config.Consumer.Offsets.AutoCommit.Enable = false
	joined, err := sarama.NewConsumerGroup([]string{bootstrap}, group, config)
	if err != nil {
		return err
	}
	for ctx.Err() == nil {
		if err := joined.Consume(ctx, []string{topic}, claims{topic}); err != nil {
			println("consume:", err.Error())
		}
	}
	return joined.Close()
}
