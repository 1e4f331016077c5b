// A program with kafkajs. Arguments: its folder, `member` or `admin`, the bootstrap server, the group and the topic.
// A member prints like those in Go (`go_members`); an administrator prints what it has found.
const { Kafka, PartitionAssigners, logLevel } = require(process.argv[2])
const [what, bootstrap, group, topic] = process.argv.slice(3)
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

async function admin() {
  const admin = kafka.admin()
  await admin.connect()
  for (let time = 0; time < 5; time++) {
    const described = await admin.describeGroups([group])
    const [{ partitions }] = await admin.fetchOffsets({ groupId: group, topics: [topic] })
    const { groups } = await admin.listGroups()
    const count = groups.filter(({ groupId }) => groupId === group).length
    console.log('found', described.groups[0].state, partitions.find(({ partition }) => partition === 0).offset, count)
  }
  await admin.disconnect()
}

({ member, admin })[what]().catch(error => {
  console.log('failed', error.message)
  process.exit(1)
})
