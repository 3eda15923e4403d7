import com.google.gson.JsonObject;
import java.nio.charset.StandardCharsets;
import java.util.*;
import java.util.concurrent.*;
import org.apache.rocketmq.client.producer.*;
import org.apache.rocketmq.client.producer.selector.SelectMessageQueueByHash;
import org.apache.rocketmq.common.message.*;

/**
 * Sends until it is stopped, whatever happens to the broker: `start_load` (namesrv, topic, groups, pause_ms, and most, the messages of a
 * group, if there is a limit) has one thread for each message group, which sends `GROUP-NUMBER` to the group's queue, one after the other,
 * never twice. `stop_load` gives all that was sent:
 * [group, number, queue_id, queue_offset] for what the broker acknowledged, [group, number, error] for the rest, each group in order.
 */
public class Loads {
    private static volatile boolean running;
    private static DefaultMQProducer producer;
    private static ExecutorService threads;
    private static final List<Future<List<Object[]>>> SENT = new ArrayList<>();

    public static void register(Talk talk) {
        talk.verb("start_load", Loads::start);
        talk.verb("stop_load", Loads::stop);
    }

    private static Object start(JsonObject request) throws Exception {
        producer = new DefaultMQProducer("loaders");
        producer.setNamesrvAddr(request.get("namesrv").getAsString());
        producer.setInstanceName("loader" + System.nanoTime()); // a client of its own
        producer.setSendMsgTimeout(Talk.number(request, "timeout_ms", 3000));
        producer.setRetryTimesWhenSendFailed(0);
        producer.setPollNameServerInterval(1000);
        producer.start();
        int groups = request.get("groups").getAsInt();
        String topic = request.get("topic").getAsString();
        long pauseMs = request.get("pause_ms").getAsLong();
        int most = request.has("most") ? request.get("most").getAsInt() : Integer.MAX_VALUE;
        SENT.clear();
        running = true;
        threads = Executors.newFixedThreadPool(groups);
        for (int g = 0; g < groups; g++) {
            String group = "g" + g;
            SENT.add(threads.submit(() -> send(topic, group, pauseMs, most)));
        }
        return null;
    }

    private static List<Object[]> send(String topic, String group, long pauseMs, int most) throws InterruptedException {
        List<Object[]> sent = new ArrayList<>();
        SelectMessageQueueByHash selector = new SelectMessageQueueByHash();
        for (int number = 0; running && number < most; number++) {
            try {
                byte[] body = (group + "-" + number).getBytes(StandardCharsets.UTF_8);
                SendResult result = producer.send(new Message(topic, "", group + "-" + number, body), selector, group);
                if (result.getSendStatus() != SendStatus.SEND_OK) throw new IllegalStateException(result.getSendStatus().name());
                sent.add(new Object[] {group, number, result.getMessageQueue().getQueueId(), result.getQueueOffset()});
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

    private static Object stop(JsonObject request) throws Exception {
        running = false;
        List<Object[]> all = new ArrayList<>();
        for (Future<List<Object[]>> sent : SENT) all.addAll(sent.get(30, TimeUnit.SECONDS));
        threads.shutdown();
        producer.shutdown();
        return all;
    }
}
