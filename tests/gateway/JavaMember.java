import java.io.FileInputStream;
import java.lang.reflect.Method;
import java.util.Arrays;
import java.util.Collection;
import java.util.Iterator;
import java.util.Properties;
import java.util.TreeSet;

import org.apache.kafka.clients.consumer.ConsumerRebalanceListener;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.errors.WakeupException;

/**
 * A member of a group as Java programs are one: it prints its partitions and messages, and leaves when it is asked to end.
 *
 * Arguments: the consumer's properties file, and topics. Janino compiles this when it starts: no lambdas, no inferred
 * types. It works with the clients of 1.1 and 4.x, which have no method to poll in common.
 */
public final class JavaMember {
    public static void main(String[] args) throws Exception {
        Properties properties = new Properties();
        FileInputStream file = new FileInputStream(args[0]);
        properties.load(file);
        file.close();
        final KafkaConsumer consumer = new KafkaConsumer(properties);
        final Thread main = Thread.currentThread();
        Runtime.getRuntime().addShutdownHook(new Thread() {
            public void run() {
                consumer.wakeup();
                try {
                    main.join();
                } catch (InterruptedException e) {
                    return;
                }
            }
        });
        consumer.subscribe(Arrays.asList(args).subList(1, args.length), new ConsumerRebalanceListener() {
            public void onPartitionsRevoked(Collection revoked) {
                System.out.println("revoked " + new TreeSet(names(revoked)));
            }

            public void onPartitionsAssigned(Collection assigned) {
                System.out.println("assigned " + new TreeSet(names(assigned)));
            }
        });
        System.out.println(consume(consumer));
        long began = System.currentTimeMillis();
        consumer.close();
        System.out.println("left " + (System.currentTimeMillis() - began));
    }

    private static String consume(KafkaConsumer consumer) {
        try {
            boolean reading = true;
            while (reading) {
                Iterator records = poll(consumer).iterator();
                while (records.hasNext()) {
                    ConsumerRecord each = (ConsumerRecord) records.next();
                    System.out.println("read " + each.topic() + "-" + each.partition() + "@" + each.offset());
                }
                consumer.commitSync();
            }
            return "";
        } catch (WakeupException e) {
            return "ending";
        } catch (Exception e) {
            return "failed " + e;
        }
    }

    private static Collection names(Collection partitions) {
        Collection found = new TreeSet();
        Iterator each = partitions.iterator();
        while (each.hasNext()) {
            found.add(each.next().toString());
        }
        return found;
    }

    private static ConsumerRecords poll(KafkaConsumer consumer) throws Exception {
        try {
            Class duration = Class.forName("java.time.Duration");
            Method poll = KafkaConsumer.class.getMethod("poll", new Class[] {duration});
            Object time = duration.getMethod("ofMillis", new Class[] {Long.TYPE}).invoke(null, new Object[] {Long.valueOf(100)});
            return (ConsumerRecords) poll.invoke(consumer, new Object[] {time});
        } catch (NoSuchMethodException e) {
            Method poll = KafkaConsumer.class.getMethod("poll", new Class[] {Long.TYPE});
            return unwrapped(poll, consumer);
        } catch (java.lang.reflect.InvocationTargetException e) {
            throw (Exception) e.getCause();
        }
    }

    private static ConsumerRecords unwrapped(Method poll, KafkaConsumer consumer) throws Exception {
        try {
            return (ConsumerRecords) poll.invoke(consumer, new Object[] {Long.valueOf(100)});
        } catch (java.lang.reflect.InvocationTargetException e) {
            throw (Exception) e.getCause();
        }
    }
}
