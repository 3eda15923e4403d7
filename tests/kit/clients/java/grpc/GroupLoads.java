import com.google.gson.JsonObject;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.*;
import java.util.concurrent.*;
import org.apache.rocketmq.client.apis.*;
import org.apache.rocketmq.client.apis.consumer.*;
import org.apache.rocketmq.client.apis.producer.Producer;

/**
 * Sends by message groups until it is stopped, whatever happens to the broker. `start_load` (grpc, topic,
 * groups, pause_ms) has one thread for each message group, which sends `GROUP-NUMBER`, one after the other, never twice. `stop_load` gives
 * [group, number] for what was acknowledged, [group, number, error] for the rest. `start_consumer` (grpc, topic, group) has a push
 * consumer that acknowledges all that it is given; `consumed` gives the bodies in arrival order, `stop_consumer` ends it.
 */
public class GroupLoads {
    private static final ClientServiceProvider PROVIDER = ClientServiceProvider.loadService();
    private static final List<Future<List<Object[]>>> SENT = new ArrayList<>();
    private static volatile boolean running;
    private static final List<String> CONSUMED = Collections.synchronizedList(new ArrayList<>());
    private static Producer producer;
    private static PushConsumer consumer;
    private static ExecutorService threads;

    public static void register(Talk talk) {
        talk.verb("start_load", GroupLoads::start);
        talk.verb("stop_load", GroupLoads::stop);
        talk.verb("start_consumer", GroupLoads::startConsumer);
        talk.verb("consumed", request -> { synchronized (CONSUMED) { return new ArrayList<>(CONSUMED); } });
        talk.verb("stop_consumer", request -> { consumer.close(); return null; });
    }

    private static ClientConfiguration configuration(JsonObject request) {
        return ClientConfiguration.newBuilder().setEndpoints(request.get("grpc").getAsString()).setRequestTimeout(Duration.ofSeconds(3)).build();
    }

    private static Object start(JsonObject request) throws Exception {
        String topic = request.get("topic").getAsString();
        producer = PROVIDER.newProducerBuilder().setClientConfiguration(configuration(request)).setTopics(topic).setMaxAttempts(1).build();
        int groups = request.get("groups").getAsInt();
        running = true;
        threads = Executors.newFixedThreadPool(groups);
        for (int g = 0; g < groups; g++) {
            String group = "g" + g;
            SENT.add(threads.submit(() -> send(topic, group, request.get("pause_ms").getAsLong())));
        }
        return null;
    }

    private static List<Object[]> send(String topic, String group, long pauseMs) throws InterruptedException {
        List<Object[]> sent = new ArrayList<>();
        for (int number = 0; running; number++) {
            try {
                byte[] body = (group + "-" + number).getBytes(StandardCharsets.UTF_8);
                producer.send(PROVIDER.newMessageBuilder().setTopic(topic).setMessageGroup(group).setKeys(group + "-" + number).setBody(body).build());
                sent.add(new Object[] {group, number});
                Thread.sleep(pauseMs);
            } catch (InterruptedException e) {
                throw e;
            } catch (Exception e) {
                sent.add(new Object[] {group, number, String.valueOf(e.getMessage())});
                Thread.sleep(100);
            }
        }
        return sent;
    }

    private static Object startConsumer(JsonObject request) throws Exception {
        consumer = PROVIDER.newPushConsumerBuilder()
            .setClientConfiguration(configuration(request)).setConsumerGroup(request.get("group").getAsString())
            .setSubscriptionExpressions(Map.of(request.get("topic").getAsString(), new FilterExpression("*")))
            .setMessageListener(view -> {
                CONSUMED.add(StandardCharsets.UTF_8.decode(view.getBody()).toString());
                return ConsumeResult.SUCCESS;
            }).build();
        return null;
    }

    private static Object stop(JsonObject request) throws Exception {
        running = false;
        List<Object[]> all = new ArrayList<>();
        for (Future<List<Object[]>> sent : SENT) all.addAll(sent.get(30, TimeUnit.SECONDS));
        threads.shutdown();
        return all;
    }
}
