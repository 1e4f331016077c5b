// A member with kafkajs, which prints like those in Go (`go_members`). Arguments: the folder of kafkajs, the bootstrap
// server, the group and the topic.
const { Kafka, PartitionAssigners, logLevel } = require(process.argv[2])
const [bootstrap, group, topic] = process.argv.slice(3)
const kafka = new Kafka({ brokers: [bootstrap], logLevel: logLevel.ERROR })

async function member() {
  const consumer = kafka.consumer({ groupId: group, sessionTimeout: 10000, heartbeatInterval: 300 })
  consumer.on(consumer.events.GROUP_JOIN, ({ payload }) => {
    console.log(`assigned [${(payload.memberAssignment[topic] || []).map(number => `${topic}-${number}`).join(' ')}]`)
  })
  process.on('SIGTERM', async () => {
    const asked = Date.now()
    await consumer.disconnect()
    console.log('left', Date.now() - asked)
  })
  await consumer.connect()
  await consumer.subscribe({ topic, fromBeginning: true })
  await consumer.run({
    eachMessage: async ({ partition, message }) => console.log(`read ${topic}-${partition}@${message.offset}`),
  })
}

member().catch(error => {
  console.log('failed', error.message)
  process.exit(1)
})
