import java.io.FileInputStream;
import java.util.HashMap;
import java.util.Properties;

import org.apache.kafka.clients.consumer.ConsumerGroupMetadata;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;

/**
 * A transactional producer as Java programs are one: two transactions, and one with the offsets of a group.
 *
 * Arguments: the producer's properties file, and a topic. Janino compiles this when it starts.
 */
public final class JavaProducer {
    public static void main(String[] args) throws Exception {
        Properties properties = new Properties();
        FileInputStream file = new FileInputStream(args[0]);
        properties.load(file);
        file.close();
        KafkaProducer producer = new KafkaProducer(properties);
        producer.initTransactions();
        for (int i = 0; i < 2; i++) {
            producer.beginTransaction();
            producer.send(new ProducerRecord(args[1], "message")).get();
            producer.commitTransaction();
            System.out.println("committed");
        }
        System.out.println("with offsets: " + withOffsets(producer, args[1]));
        producer.close();
    }

    private static String withOffsets(KafkaProducer producer, String topic) {
        try {
            producer.beginTransaction();
            HashMap offsets = new HashMap();
            offsets.put(new TopicPartition(topic, 0), new OffsetAndMetadata(1L));
            producer.sendOffsetsToTransaction(offsets, new ConsumerGroupMetadata("here-java"));
            producer.commitTransaction();
            return "committed";
        } catch (Exception e) {
            return String.valueOf(e.getCause() == null ? e : e.getCause());
        }
    }
}
