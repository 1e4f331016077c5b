import java.io.FileInputStream;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;

import kafka.consumer.Consumer;
import kafka.consumer.ConsumerConfig;
import kafka.consumer.ConsumerIterator;
import kafka.consumer.ConsumerTimeoutException;
import kafka.consumer.KafkaStream;
import kafka.javaapi.consumer.ConsumerConnector;
import kafka.message.MessageAndMetadata;

/**
 * A program as one would write it on Kafka's own high-level consumer, which knows at every moment what it has done.
 *
 * It does one message after the other, says so, and commits to ZooKeeper: now and then by itself, and at last when it
 * has done as many as it was to do, or is asked to end. What it says it did and what it committed are then the same.
 *
 * Arguments: the consumer's properties file; "count", how many messages to do (0: until it is asked to end), and the
 * topic. Janino compiles this when it starts: no lambdas, no inferred types.
 */
public final class LegacyReader {
    private static volatile boolean ending = false;

    public static void main(String[] args) throws Exception {
        Properties properties = new Properties();
        FileInputStream file = new FileInputStream(args[0]);
        properties.load(file);
        file.close();
        final Thread reader = Thread.currentThread();
        Runtime.getRuntime().addShutdownHook(new Thread() {
            public void run() {
                ending = true;
                try {
                    reader.join();
                } catch (InterruptedException error) {
                    error.printStackTrace();
                }
            }
        });
        ConsumerConnector connector = Consumer.createJavaConsumerConnector(new ConsumerConfig(properties));
        try {
            Map topics = new HashMap();
            topics.put(args[3], Integer.valueOf(1));
            List streams = (List) connector.createMessageStreams(topics).get(args[3]);
            System.out.println("subscribed");
            read(((KafkaStream) streams.get(0)).iterator(), Integer.parseInt(args[2]));
            connector.commitOffsets();
        } finally {
            connector.shutdown();
        }
        System.out.println("left");
    }

    private static void read(ConsumerIterator messages, int count) {
        int done = 0;
        while (!ending && (count == 0 || done < count)) {
            try {
                show(messages.next());
                done += 1;
            } catch (ConsumerTimeoutException nothing) {
                // so that it is seen when it is to end
            }
        }
    }

    private static void show(MessageAndMetadata message) {
        String text = new String((byte[]) message.message(), StandardCharsets.UTF_8);
        System.out.println("read " + message.topic() + " " + message.partition() + " " + message.offset() + " " + text);
    }
}
