import com.google.gson.*;
import java.nio.charset.StandardCharsets;
import java.util.*;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.rocketmq.client.consumer.*;
import org.apache.rocketmq.client.consumer.listener.*;
import org.apache.rocketmq.client.consumer.rebalance.*;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.*;

/**
 * Consumers of both Java clients, 5.5.0 and 4.9.8: push and lite pull. Each is named; what one has received is asked for by its name.
 * `start_push`: group, topics; expression, sql; model; from (FIRST, LAST or a time yyyyMMddHHmmss); orderly; strategy; fail: how often a
 * body that begins with "bad" fails, -1 always; max_reconsume_times; threads; broker_rebalance: the broker assigns the queues (5.x only).
 */
public class Consumers {
    private static final Map<String, DefaultMQPushConsumer> PUSH = new ConcurrentHashMap<>();
    private static final Map<String, DefaultLitePullConsumer> LITE = new ConcurrentHashMap<>();
    private static final Map<String, List<Map<String, Object>>> RECEIVED = new ConcurrentHashMap<>();

    public static void register(Talk talk) {
        talk.verb("start_push", Consumers::startPush);
        talk.verb("received", request -> { List<Map<String, Object>> all = received(name(request)); synchronized (all) { return new ArrayList<>(all); } });
        talk.verb("assigned", request -> queueIds(request));
        talk.verb("stop", request -> { PUSH.remove(name(request)).shutdown(); return null; });
        talk.verb("start_lite", Consumers::startLite);
        talk.verb("poll", Consumers::poll);
        talk.verb("seek_to_begin", request -> { for (MessageQueue queue : queues(request)) LITE.get(name(request)).seekToBegin(queue); return null; });
        talk.verb("seek_to_time", Consumers::seekToTime);
        talk.verb("commit", request -> { LITE.get(name(request)).commitSync(); return null; });
        talk.verb("stop_lite", request -> { LITE.remove(name(request)).shutdown(); return null; });
    }

    private static String name(JsonObject request) { return request.get("name").getAsString(); }

    private static List<Map<String, Object>> received(String name) { return RECEIVED.computeIfAbsent(name, key -> Collections.synchronizedList(new ArrayList<>())); }

    private static Object startPush(JsonObject request) throws Exception {
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(request.get("group").getAsString());
        String name = name(request);
        consumer.setNamesrvAddr(request.get("namesrv").getAsString());
        consumer.setInstanceName(name); // a client of its own
        if (request.has("client_ip")) consumer.setClientIP(request.get("client_ip").getAsString());
        setModel(consumer, Talk.text(request, "model", "CLUSTERING"));
        String from = Talk.text(request, "from", "FIRST");
        boolean end = from.equals("FIRST") || from.equals("LAST");
        consumer.setConsumeFromWhere(ConsumeFromWhere.valueOf("CONSUME_FROM_" + (end ? from + "_OFFSET" : "TIMESTAMP")));
        if (!end) consumer.setConsumeTimestamp(from);
        consumer.setPollNameServerInterval(1000);
        consumer.setMaxReconsumeTimes(Talk.number(request, "max_reconsume_times", -1));
        consumer.setSuspendCurrentQueueTimeMillis(100);
        consumer.setConsumeThreadMin(Talk.number(request, "threads", consumer.getConsumeThreadMin()));
        consumer.setAllocateMessageQueueStrategy(strategy(request));
        String expression = Talk.text(request, "expression", "*");
        for (JsonElement topic : request.getAsJsonArray("topics")) {
            if (request.has("sql")) consumer.subscribe(topic.getAsString(), MessageSelector.bySql(expression));
            else consumer.subscribe(topic.getAsString(), expression);
        }
        if (request.has("broker_rebalance")) setClientRebalance(consumer);
        int failures = Talk.number(request, "fail", 0);
        if (request.has("orderly")) {
            consumer.registerMessageListener((MessageListenerOrderly) (messages, context) ->
                take(name, messages, failures) ? ConsumeOrderlyStatus.SUCCESS : ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT);
        } else {
            consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
                if (take(name, messages, failures)) return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
                context.setDelayLevelWhenNextConsume(1);
                return ConsumeConcurrentlyStatus.RECONSUME_LATER;
            });
        }
        consumer.start();
        PUSH.put(name, consumer);
        return null;
    }

    /** The enum is in different packages of 4.9.8 and 5.5.0. */
    @SuppressWarnings({"unchecked", "rawtypes"})
    private static void setModel(DefaultMQPushConsumer consumer, String model) throws ReflectiveOperationException {
        for (java.lang.reflect.Method method : DefaultMQPushConsumer.class.getMethods())
            if (method.getName().equals("setMessageModel")) method.invoke(consumer, Enum.valueOf((Class) method.getParameterTypes()[0], model));
    }

    /** Only 5.x has it. */
    private static void setClientRebalance(DefaultMQPushConsumer consumer) throws ReflectiveOperationException {
        DefaultMQPushConsumer.class.getMethod("setClientRebalance", boolean.class).invoke(consumer, false);
    }

    private static boolean take(String name, List<MessageExt> messages, int failures) {
        boolean good = true;
        for (MessageExt message : messages) {
            Map<String, Object> line = line(message);
            received(name).add(line);
            boolean bad = line.get("body").toString().startsWith("bad");
            if (bad && (failures < 0 || message.getReconsumeTimes() < failures)) good = false;
        }
        return good;
    }

    private static Map<String, Object> line(MessageExt message) {
        Map<String, Object> line = new LinkedHashMap<>();
        line.put("body", new String(message.getBody(), StandardCharsets.UTF_8));
        line.put("topic", message.getTopic());
        line.put("queue_id", message.getQueueId());
        line.put("queue_offset", message.getQueueOffset());
        line.put("reconsume_times", message.getReconsumeTimes());
        line.put("store_timestamp", message.getStoreTimestamp());
        line.put("arrived_ms", System.currentTimeMillis());
        line.put("properties", new TreeMap<>(message.getProperties()));
        return line;
    }

    private static AllocateMessageQueueStrategy strategy(JsonObject request) throws Exception {
        switch (Talk.text(request, "strategy", "average")) {
            case "average": return new AllocateMessageQueueAveragely();
            case "circular": return new AllocateMessageQueueAveragelyByCircle();
            case "consistent hash": return new AllocateMessageQueueConsistentHash();
            case "configuration": {
                AllocateMessageQueueByConfig strategy = new AllocateMessageQueueByConfig();
                List<MessageQueue> queues = new ArrayList<>();
                for (JsonElement id : request.getAsJsonArray("queue_ids"))
                    queues.add(new MessageQueue(request.getAsJsonArray("topics").get(0).getAsString(), request.get("broker").getAsString(), id.getAsInt()));
                strategy.setMessageQueueList(queues);
                return strategy;
            }
            case "machine room": {
                AllocateMessageQueueByMachineRoom strategy = new AllocateMessageQueueByMachineRoom();
                strategy.setConsumeridcs(Collections.singleton(request.get("room").getAsString()));
                return strategy;
            }
            case "nearby room":
                return new AllocateMachineRoomNearby(new AllocateMessageQueueAveragely(), new AllocateMachineRoomNearby.MachineRoomResolver() {
                    @Override public String brokerDeployIn(MessageQueue queue) { return "room"; }
                    @Override public String consumerDeployIn(String clientId) { return clientId.contains("far") ? "elsewhere" : "room"; }
                });
            default: throw new IllegalArgumentException(request.get("strategy").getAsString());
        }
    }

    /** The queues of the first topic that a push consumer has now, sorted. */
    private static Object queueIds(JsonObject request) {
        DefaultMQPushConsumer consumer = PUSH.get(name(request));
        TreeSet<Integer> ids = new TreeSet<>();
        for (MessageQueue queue : consumer.getDefaultMQPushConsumerImpl().getRebalanceImpl().getProcessQueueTable().keySet())
            if (!queue.getTopic().startsWith("%RETRY%")) ids.add(queue.getQueueId());
        return ids;
    }

    /** assign: whether queues are assigned by hand, not shared by the group. */
    private static Object startLite(JsonObject request) throws Exception {
        DefaultLitePullConsumer consumer = new DefaultLitePullConsumer(request.get("group").getAsString());
        consumer.setNamesrvAddr(request.get("namesrv").getAsString());
        consumer.setInstanceName(name(request));
        consumer.setAutoCommit(false);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        boolean assigns = request.has("assign");
        if (!assigns) consumer.subscribe(request.get("topic").getAsString(), Talk.text(request, "expression", "*"));
        consumer.start();
        if (assigns) consumer.assign(consumer.fetchMessageQueues(request.get("topic").getAsString()));
        LITE.put(name(request), consumer);
        return null;
    }

    private static Collection<MessageQueue> queues(JsonObject request) throws Exception { return LITE.get(name(request)).fetchMessageQueues(request.get("topic").getAsString()); }

    private static Object seekToTime(JsonObject request) throws Exception {
        DefaultLitePullConsumer consumer = LITE.get(name(request));
        for (MessageQueue queue : queues(request)) consumer.seek(queue, consumer.offsetForTimestamp(queue, request.get("time_ms").getAsLong()));
        return null;
    }

    private static Object poll(JsonObject request) {
        List<Object> lines = new ArrayList<>();
        for (MessageExt message : LITE.get(name(request)).poll(Talk.number(request, "timeout_ms", 1000))) lines.add(line(message));
        return lines;
    }
}
