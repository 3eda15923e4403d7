import com.google.gson.*;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.*;
import java.util.concurrent.*;
import org.apache.rocketmq.client.apis.*;
import org.apache.rocketmq.client.apis.consumer.*;
import org.apache.rocketmq.client.apis.message.*;
import org.apache.rocketmq.client.apis.producer.*;

/** Producers and consumers of Apache's Java client over gRPC, by name: the verbs that all languages have. */
public class Messaging {
    private static final ClientServiceProvider PROVIDER = ClientServiceProvider.loadService();
    private static final Map<String, AutoCloseable> CLIENTS = new ConcurrentHashMap<>();
    private static final Map<String, List<Map<String, Object>>> COLLECTED = new ConcurrentHashMap<>();
    private static final List<String> CHECKED = new CopyOnWriteArrayList<>();
    private static final Map<String, MessageView> HELD = new ConcurrentHashMap<>();

    public static void register(Talk talk) {
        talk.verb("start_producer", Messaging::startProducer);
        talk.verb("send", request -> {
            SendReceipt receipt = producer(request).send(message(request));
            return sent(receipt);
        });
        talk.verb("recall", request -> producer(request)
            .recallMessage(Talk.text(request, "topic", null), Talk.text(request, "recall_handle", null)).getMessageId().toString());
        talk.verb("send_in_transaction", Messaging::sendInTransaction);
        talk.verb("start_push", Messaging::startPush);
        talk.verb("start_lite_push", Messaging::startLitePush);
        talk.verb("subscribe_lite", request -> { lite(request).subscribeLite(Talk.text(request, "lite_topic", null)); return null; });
        talk.verb("unsubscribe_lite", request -> { lite(request).unsubscribeLite(Talk.text(request, "lite_topic", null)); return null; });
        talk.verb("start_simple", Messaging::startSimple);
        talk.verb("receive", Messaging::receive);
        talk.verb("ack", request -> { simple(request).ack(held(request)); return null; });
        talk.verb("change_invisible", request -> {
            simple(request).changeInvisibleDuration(held(request), Duration.ofSeconds(Talk.number(request, "seconds", 1)));
            return null;
        });
        talk.verb("collected", request -> new ArrayList<>(COLLECTED.getOrDefault(Talk.text(request, "topic", null), List.of())));
        talk.verb("checked", request -> CHECKED);
        talk.verb("stop", request -> { CLIENTS.remove(name(request)).close(); return null; });
    }

    private static String name(JsonObject request) { return Talk.text(request, "name", null); }
    private static Producer producer(JsonObject request) { return (Producer) CLIENTS.get(name(request)); }
    private static SimpleConsumer simple(JsonObject request) { return (SimpleConsumer) CLIENTS.get(name(request)); }
    private static LitePushConsumer lite(JsonObject request) { return (LitePushConsumer) CLIENTS.get(name(request)); }
    private static MessageView held(JsonObject request) { return HELD.get(Talk.text(request, "message_id", null)); }

    private static ClientConfiguration configuration(JsonObject request) {
        ClientConfigurationBuilder builder = ClientConfiguration.newBuilder().setEndpoints(Talk.text(request, "grpc", null));
        List<String> credentials = texts(request, "credentials");
        if (!credentials.isEmpty()) {
            builder.setCredentialProvider(new StaticSessionCredentialsProvider(credentials.get(0), credentials.get(1)));
        }
        return builder.build();
    }

    private static List<String> texts(JsonObject request, String name) {
        List<String> found = new ArrayList<>();
        if (request.has(name)) request.get(name).getAsJsonArray().forEach(one -> found.add(one.getAsString()));
        return found;
    }

    private static Object startProducer(JsonObject request) throws ClientException {
        ProducerBuilder builder = PROVIDER.newProducerBuilder()
            .setClientConfiguration(configuration(request)).setTopics(texts(request, "topics").toArray(new String[0]));
        if (request.get("transactional").getAsBoolean()) {
            builder.setTransactionChecker(view -> {
                CHECKED.add(body(view));
                return TransactionResolution.COMMIT;
            });
        }
        CLIENTS.put(name(request), builder.build());
        return null;
    }

    private static Message message(JsonObject request) {
        String body = Talk.text(request, "body", "").repeat(Talk.number(request, "times", 1));
        MessageBuilder builder = PROVIDER.newMessageBuilder()
            .setTopic(Talk.text(request, "topic", null)).setBody(body.getBytes(StandardCharsets.UTF_8));
        if (request.has("tag")) builder.setTag(Talk.text(request, "tag", null));
        List<String> keys = texts(request, "keys");
        if (!keys.isEmpty()) builder.setKeys(keys.toArray(new String[0]));
        if (request.has("properties")) {
            for (Map.Entry<String, JsonElement> one : request.get("properties").getAsJsonObject().entrySet())
                builder.addProperty(one.getKey(), one.getValue().getAsString());
        }
        if (request.has("message_group")) builder.setMessageGroup(Talk.text(request, "message_group", null));
        if (request.has("lite_topic")) builder.setLiteTopic(Talk.text(request, "lite_topic", null));
        if (request.has("delay_ms")) builder.setDeliveryTimestamp(System.currentTimeMillis() + Talk.number(request, "delay_ms", 0));
        return builder.build();
    }

    private static Map<String, Object> sent(SendReceipt receipt) {
        Map<String, Object> found = new HashMap<>();
        found.put("message_id", receipt.getMessageId().toString());
        found.put("at_ms", System.currentTimeMillis());
        found.put("recall_handle", receipt.getRecallHandle());
        return found;
    }

    private static Object sendInTransaction(JsonObject request) throws ClientException {
        Transaction transaction = producer(request).beginTransaction();
        SendReceipt receipt = producer(request).send(message(request), transaction);
        String end = Talk.text(request, "end", "");
        if (end.equals("commit")) transaction.commit();
        if (end.equals("rollback")) transaction.rollback();
        return receipt.getMessageId().toString();
    }

    private static Map<String, FilterExpression> subscription(JsonObject request) {
        FilterExpressionType type = request.has("sql") ? FilterExpressionType.SQL92 : FilterExpressionType.TAG;
        return Map.of(Talk.text(request, "topic", null), new FilterExpression(Talk.text(request, "expression", "*"), type));
    }

    private static Object startPush(JsonObject request) throws ClientException {
        int failTimes = Talk.number(request, "fail_times", 0);
        String poison = Talk.text(request, "poison", null);
        CLIENTS.put(name(request), PROVIDER.newPushConsumerBuilder()
            .setClientConfiguration(configuration(request)).setConsumerGroup(Talk.text(request, "group", null))
            .setSubscriptionExpressions(subscription(request)).setMessageListener(view -> {
                boolean failed = view.getDeliveryAttempt() <= failTimes || body(view).equals(poison);
                return take(view.getTopic(), view, failed);
            }).build());
        return null;
    }

    private static ConsumeResult take(String key, MessageView view, boolean failed) {
        COLLECTED.computeIfAbsent(key, topic -> new CopyOnWriteArrayList<>()).add(describe(view));
        return failed ? ConsumeResult.FAILURE : ConsumeResult.SUCCESS;
    }

    /** A consumer of lite topics. What it is given is collected by its own name, since several consume one topic. */
    private static Object startLitePush(JsonObject request) throws ClientException {
        int failTimes = Talk.number(request, "fail_times", 0);
        String name = name(request);
        CLIENTS.put(name, PROVIDER.newLitePushConsumerBuilder()
            .setClientConfiguration(configuration(request)).setConsumerGroup(Talk.text(request, "group", null))
            .bindTopic(Talk.text(request, "topic", null))
            .setMessageListener(view -> take(name, view, body(view).equals("bad") && view.getDeliveryAttempt() <= failTimes)).build());
        return null;
    }


    private static Object startSimple(JsonObject request) throws ClientException {
        CLIENTS.put(name(request), PROVIDER.newSimpleConsumerBuilder()
            .setClientConfiguration(configuration(request)).setConsumerGroup(Talk.text(request, "group", null))
            .setAwaitDuration(Duration.ofSeconds(Talk.number(request, "await_s", 5)))
            .setSubscriptionExpressions(subscription(request)).build());
        return null;
    }

    private static Object receive(JsonObject request) throws ClientException {
        List<Map<String, Object>> found = new ArrayList<>();
        for (MessageView view : simple(request)
            .receive(Talk.number(request, "count", 32), Duration.ofSeconds(Talk.number(request, "invisible_s", 30)))) {
            HELD.put(view.getMessageId().toString(), view);
            found.add(describe(view));
        }
        return found;
    }

    private static String body(MessageView view) { return StandardCharsets.UTF_8.decode(view.getBody()).toString(); }

    private static Map<String, Object> describe(MessageView view) {
        Map<String, Object> found = new HashMap<>();
        found.put("topic", view.getTopic());
        found.put("body", body(view));
        found.put("tag", view.getTag().orElse(null));
        found.put("keys", view.getKeys());
        found.put("properties", view.getProperties());
        found.put("message_id", view.getMessageId().toString());
        found.put("message_group", view.getMessageGroup().orElse(null));
        found.put("lite_topic", view.getLiteTopic().orElse(null));
        found.put("attempt", view.getDeliveryAttempt());
        found.put("queue_id", -1);
        found.put("queue_offset", 0);
        found.put("at_ms", System.currentTimeMillis());
        return found;
    }
}
