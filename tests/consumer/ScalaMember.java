import java.io.FileInputStream;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.Iterator;
import java.util.List;
import java.util.Map;
import java.util.Properties;

import kafka.consumer.Consumer;
import kafka.consumer.ConsumerConfig;
import kafka.consumer.KafkaStream;
import kafka.consumer.Whitelist;
import kafka.javaapi.consumer.ConsumerConnector;
import kafka.message.MessageAndMetadata;

/**
 * A member of a group as Kafka's own high-level consumer is one: it prints what it reads, and leaves when it is asked to end.
 *
 * Arguments: the consumer's properties file; then "topics", and a topic and its number of streams in turn, or
 * "pattern", an expression and a number of streams. Kafka's own console consumer cannot do more than one stream, nor
 * subscribe to topics by their names. Janino compiles this when it starts: no lambdas, no inferred types.
 */
public final class ScalaMember {
    private static volatile boolean ending = false;

    public static void main(String[] args) throws Exception {
        Properties properties = new Properties();
        FileInputStream file = new FileInputStream(args[0]);
        properties.load(file);
        file.close();
        final ConsumerConnector connector = Consumer.createJavaConsumerConnector(new ConsumerConfig(properties));
        Runtime.getRuntime().addShutdownHook(new Thread() {
            public void run() {
                ending = true;
                connector.shutdown();
                System.out.println("left");
            }
        });
        Iterator streams = (args[1].equals("pattern") ? chosen(connector, args) : named(connector, args)).iterator();
        System.out.println("subscribed");
        while (streams.hasNext()) {
            read((KafkaStream) streams.next());
        }
    }

    private static List chosen(ConsumerConnector connector, String[] args) {
        return connector.createMessageStreamsByFilter(new Whitelist(args[2]), Integer.parseInt(args[3]));
    }

    private static List named(ConsumerConnector connector, String[] args) {
        Map topics = new HashMap();
        for (int i = 2; i < args.length; i += 2) {
            topics.put(args[i], Integer.valueOf(args[i + 1]));
        }
        List all = new ArrayList();
        Iterator found = connector.createMessageStreams(topics).values().iterator();
        while (found.hasNext()) {
            all.addAll((List) found.next());
        }
        return all;
    }

    private static void read(final KafkaStream stream) {
        new Thread() {
            public void run() {
                try {
                    Iterator messages = stream.iterator();
                    while (messages.hasNext()) {
                        show((MessageAndMetadata) messages.next());
                    }
                } catch (Throwable error) {
                    if (!ending) {
                        error.printStackTrace();
                    }
                }
            }
        }.start();
    }

    private static void show(MessageAndMetadata message) {
        String text = new String((byte[]) message.message(), StandardCharsets.UTF_8);
        System.out.println("read " + message.topic() + " " + message.partition() + " " + message.offset() + " " + text);
    }
}
