import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;

import clojure.lang.Atom;
import org.apache.storm.Config;
import org.apache.storm.generated.StormTopology;
import org.apache.storm.kafka.Broker;
import org.apache.storm.kafka.DynamicPartitionConnections;
import org.apache.storm.kafka.KafkaConfig;
import org.apache.storm.kafka.KafkaUtils;
import org.apache.storm.kafka.MessageMetadataSchemeAsMultiScheme;
import org.apache.storm.kafka.Partition;
import org.apache.storm.kafka.PartitionManager;
import org.apache.storm.kafka.SpoutConfig;
import org.apache.storm.kafka.StaticHosts;
import org.apache.storm.kafka.StringMessageAndMetadataScheme;
import org.apache.storm.kafka.ZkState;
import org.apache.storm.kafka.trident.GlobalPartitionInformation;
import org.apache.storm.kafka.trident.OpaqueTridentKafkaSpout;
import org.apache.storm.kafka.trident.TransactionalTridentKafkaSpout;
import org.apache.storm.kafka.trident.TridentKafkaConfig;
import org.apache.storm.spout.ISpoutOutputCollector;
import org.apache.storm.spout.SpoutOutputCollector;
import org.apache.storm.task.TopologyContext;
import org.apache.storm.trident.operation.TridentCollector;
import org.apache.storm.trident.spout.ICommitterTridentSpout;
import org.apache.storm.trident.spout.ITridentSpout;
import org.apache.storm.trident.spout.OpaquePartitionedTridentSpoutExecutor;
import org.apache.storm.trident.spout.PartitionedTridentSpoutExecutor;
import org.apache.storm.trident.topology.TransactionAttempt;
import org.apache.storm.trident.topology.state.TransactionalState;
import org.apache.storm.utils.Utils;

/**
 * The classes of Storm that read Kafka and keep offsets in ZooKeeper, without the rest of a Storm cluster.
 *
 * It prints each message that was processed. Arguments: "spout", "opaque" or "transactional"; host and port of
 * ZooKeeper; the root; the group; host and port of the broker; the topic; the number of partitions; "true" if the
 * topic is part of the paths; and how much to do: messages of each partition, or committed batches. At the end, one
 * more message of each partition, or one more batch, is emitted but not processed. Janino compiles this when it
 * starts: no lambdas, no inferred types.
 */
public final class StormJob {
    private static String[] args;
    private static String topic;
    private static int work;

    public static void main(String[] given) throws Exception {
        args = given;
        topic = args[6];
        work = Integer.parseInt(args[9]);
        if (args[0].equals("spout")) {
            runSpout();
        } else {
            runTrident();
        }
        System.out.println("done");
        System.exit(0);
    }

    private static Map configuration() {
        Map conf = Utils.readDefaultConfig();
        conf.put(Config.TOPOLOGY_NAME, "orders");
        conf.put(Config.STORM_ZOOKEEPER_SERVERS, Arrays.asList(new Object[] {args[1]}));
        conf.put(Config.STORM_ZOOKEEPER_PORT, Integer.valueOf(args[2]));
        conf.put(Config.TRANSACTIONAL_ZOOKEEPER_SERVERS, Arrays.asList(new Object[] {args[1]}));
        conf.put(Config.TRANSACTIONAL_ZOOKEEPER_PORT, Integer.valueOf(args[2]));
        conf.put(Config.TRANSACTIONAL_ZOOKEEPER_ROOT, args[3]);
        return conf;
    }

    private static GlobalPartitionInformation partitions() {
        int colon = args[5].lastIndexOf(':');
        Broker broker = new Broker(args[5].substring(0, colon), Integer.parseInt(args[5].substring(colon + 1)));
        GlobalPartitionInformation found = new GlobalPartitionInformation(topic, Boolean.valueOf(args[8]));
        for (int number = 0; number < Integer.parseInt(args[7]); number++) {
            found.addPartition(number, broker);
        }
        return found;
    }

    private static void show(List values) {
        System.out.println("read " + topic + " " + values.get(1) + " " + values.get(2) + " " + values.get(0));
    }

    private static void configure(KafkaConfig config) {
        config.scheme = new MessageMetadataSchemeAsMultiScheme(new StringMessageAndMetadataScheme());
        config.fetchMaxWait = 50;
        config.fetchSizeBytes = 400;
    }

    // The spout

    private static void runSpout() throws Exception {
        Map conf = configuration();
        SpoutConfig config = new SpoutConfig(new StaticHosts(partitions()), topic, args[3], args[4]);
        configure(config);
        DynamicPartitionConnections connections =
            new DynamicPartitionConnections(config, KafkaUtils.makeBrokerReader(conf, config));
        ZkState state = new ZkState(conf);
        for (Object each : partitions().getOrderedPartitions()) {
            Partition partition = (Partition) each;
            PartitionManager manager =
                new PartitionManager(connections, "orders-1-1442", state, conf, config, partition);
            Emitted emitted = new Emitted();
            SpoutOutputCollector collector = new SpoutOutputCollector(emitted);
            for (int attempt = 0; attempt < 1000 && emitted.values.size() <= work; attempt++) {
                manager.next(collector);
            }
            // The last message is not acknowledged. The others are, in another order.
            for (int number = Math.min(work, emitted.values.size()) - 1; number >= 0; number--) {
                List values = (List) emitted.values.get(number);
                manager.ack((Long) values.get(2));
            }
            for (int number = 0; number < Math.min(work, emitted.values.size()); number++) {
                show((List) emitted.values.get(number));
            }
            manager.commit();
        }
        state.close();
    }

    private static final class Emitted implements ISpoutOutputCollector {
        final List values = new ArrayList();

        public List<Integer> emit(String stream, List<Object> tuple, Object id) {
            values.add(tuple);
            return new ArrayList();
        }

        public long getPendingCount() {
            return 0;
        }

        public void emitDirect(int task, String stream, List<Object> tuple, Object id) {
        }

        public void reportError(Throwable error) {
            error.printStackTrace();
        }
    }

    // Trident

    private static void runTrident() throws Exception {
        Map conf = configuration();
        TridentKafkaConfig config = new TridentKafkaConfig(new StaticHosts(partitions()), topic);
        configure(config);
        ITridentSpout spout = args[0].equals("opaque")
            ? (ITridentSpout) new OpaquePartitionedTridentSpoutExecutor(new OpaqueTridentKafkaSpout(config))
            : (ITridentSpout) new PartitionedTridentSpoutExecutor(new TransactionalTridentKafkaSpout(config));
        TransactionalState coordinator = TransactionalState.newCoordinatorState(conf, args[4]);
        ITridentSpout.Emitter emitter = spout.getEmitter(args[4], conf, context(conf));
        List all = new ArrayList();
        all.add(partitions());
        for (long transaction = 1; transaction <= work + 1; transaction++) {
            Batch batch = new Batch();
            TransactionAttempt attempt = new TransactionAttempt(Long.valueOf(transaction), 0);
            emitter.emitBatch(attempt, all, batch);
            if (transaction > work) {
                break;  // it was killed before the batch was committed
            }
            if (emitter instanceof ICommitterTridentSpout.Emitter) {
                ((ICommitterTridentSpout.Emitter) emitter).commit(attempt);
            }
            for (Object values : batch.values) {
                show((List) values);
            }
            // As MasterBatchCoordinator does when the commit was acknowledged.
            coordinator.setData("currtx", Long.valueOf(transaction + 1));
            emitter.success(attempt);
        }
    }

    private static final class Batch implements TridentCollector {
        final List values = new ArrayList();

        public void emit(List<Object> tuple) {
            values.add(tuple);
        }

        public void reportError(Throwable error) {
            error.printStackTrace();
        }
    }

    private static TopologyContext context(Map conf) {
        Map components = new HashMap();
        components.put(Integer.valueOf(1), "spout");
        Map tasks = new HashMap();
        tasks.put("spout", Arrays.asList(new Object[] {Integer.valueOf(1)}));
        return new TopologyContext(
            new StormTopology(), conf, components, tasks, new HashMap(), "orders-1-1442", "code", "pid",
            Integer.valueOf(1), Integer.valueOf(6700), new ArrayList(), new HashMap(), new HashMap(), new HashMap(),
            new HashMap(), new Atom(Boolean.FALSE));
    }
}
