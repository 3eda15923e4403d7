import com.google.gson.*;
import java.nio.charset.StandardCharsets;
import java.security.MessageDigest;
import java.util.*;
import java.util.concurrent.*;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.*;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.utils.MessageUtil;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.*;

/**
 * A push consumer that collects all that it is given, for tests of what was sent. `collect` starts one (name, namesrv, group, topics;
 * orderly; reply_with: the name of text before each answer to a request); `collected` gives what a topic had so far, in arrival order,
 * `places` only body, queue and offset.
 */
public class Collectors {
    private static final Map<String, List<Map<String, Object>>> COLLECTED = new ConcurrentHashMap<>();
    private static final Map<String, DefaultMQPushConsumer> CONSUMERS = new ConcurrentHashMap<>();
    private static DefaultMQProducer replier;

    public static void register(Talk talk) {
        talk.verb("collect", Collectors::collect);
        talk.verb("collected", request -> {
            List<Map<String, Object>> all = COLLECTED.getOrDefault(request.get("topic").getAsString(), List.of());
            synchronized (all) { return new ArrayList<>(all); }
        });
        talk.verb("places", request -> {
            List<Object[]> places = new ArrayList<>();
            List<Map<String, Object>> all = COLLECTED.getOrDefault(request.get("topic").getAsString(), List.of());
            synchronized (all) { for (Map<String, Object> line : all) places.add(new Object[] {line.get("body"), line.get("queue_id"), line.get("queue_offset")}); }
            return places;
        });
        talk.verb("collected_count", request -> COLLECTED.getOrDefault(request.get("topic").getAsString(), List.of()).size());
        talk.verb("stop_collecting", request -> { CONSUMERS.remove(request.get("name").getAsString()).shutdown(); return null; });
    }

    private static Object collect(JsonObject request) throws Exception {
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(request.get("group").getAsString());
        consumer.setNamesrvAddr(request.get("namesrv").getAsString());
        consumer.setInstanceName(request.get("name").getAsString() + System.nanoTime()); // a client of its own
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setPollNameServerInterval(1000);
        for (JsonElement topic : request.getAsJsonArray("topics")) consumer.subscribe(topic.getAsString(), Talk.text(request, "expression", "*"));
        String reply = Talk.text(request, "reply_with", null);
        if (reply != null) {
            replier = new DefaultMQProducer("repliers");
            replier.setNamesrvAddr(consumer.getNamesrvAddr());
            replier.setInstanceName("replier");
            replier.start();
        }
        if (request.has("orderly")) {
            consumer.registerMessageListener((MessageListenerOrderly) (messages, context) -> {
                for (MessageExt message : messages) take(message);
                return ConsumeOrderlyStatus.SUCCESS;
            });
        } else {
            consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
                for (MessageExt message : messages) {
                    take(message);
                    if (reply != null && message.getProperty(MessageConst.PROPERTY_CORRELATION_ID) != null) answer(message, reply);
                }
                return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
            });
        }
        consumer.start();
        CONSUMERS.put(request.get("name").getAsString(), consumer);
        return null;
    }

    private static void answer(MessageExt message, String reply) {
        try {
            byte[] body = (reply + new String(message.getBody(), StandardCharsets.UTF_8)).getBytes(StandardCharsets.UTF_8);
            replier.send(MessageUtil.createReplyMessage(message, body), 10000);
        } catch (Exception e) {
            e.printStackTrace();
        }
    }

    private static void take(MessageExt message) {
        Map<String, Object> line = new LinkedHashMap<>();
        boolean small = message.getBody().length <= 4096;
        line.put("body", small ? new String(message.getBody(), StandardCharsets.UTF_8) : null);
        line.put("body_size", message.getBody().length);
        line.put("sha256", sha(message.getBody()));
        line.put("tag", message.getTags());
        line.put("keys", message.getKeys());
        line.put("msg_id", message.getMsgId());
        line.put("queue_id", message.getQueueId());
        line.put("queue_offset", message.getQueueOffset());
        line.put("store_size", message.getStoreSize());
        line.put("sys_flag", message.getSysFlag());
        line.put("reconsume_times", message.getReconsumeTimes());
        line.put("born_timestamp", message.getBornTimestamp());
        line.put("store_timestamp", message.getStoreTimestamp());
        line.put("properties", new TreeMap<>(message.getProperties()));
        List<Map<String, Object>> all = COLLECTED.computeIfAbsent(message.getTopic(), topic -> Collections.synchronizedList(new ArrayList<>()));
        all.add(line);
    }

    private static String sha(byte[] body) {
        try {
            return HexFormat.of().formatHex(MessageDigest.getInstance("SHA-256").digest(body));
        } catch (java.security.NoSuchAlgorithmException e) {
            throw new IllegalStateException(e);
        }
    }
}
