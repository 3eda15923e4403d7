import com.google.gson.*;
import java.nio.charset.StandardCharsets;
import java.util.*;
import java.util.concurrent.*;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.rocketmq.client.producer.*;
import org.apache.rocketmq.common.MQVersion;
import org.apache.rocketmq.common.message.*;

/**
 * The 5.5.0 client's producers: their verbs. A request names its producer (`name`), its `topic`, and a message: `body` (or `body_size`),
 * `tag`, `keys`, `properties`, `delay_level`, `deliver_after_ms`, `group` (message group of selectors). A sent message is answered as
 * {status, msg_id, offset_msg_id, queue_id, queue_offset, transaction_id}.
 */
public class Producers {
    private static final Map<String, DefaultMQProducer> PRODUCERS = new ConcurrentHashMap<>();
    private static final Map<String, String> CHECK_ANSWERS = new ConcurrentHashMap<>();
    private static final Map<String, AtomicInteger> CHECKS = new ConcurrentHashMap<>();

    public static void register(Talk talk) {
        talk.verb("version", request -> MQVersion.getVersionDesc(MQVersion.CURRENT_VERSION));
        talk.verb("start_producer", Producers::start);
        talk.verb("stop_producer", request -> { PRODUCERS.remove(request.get("name").getAsString()).shutdown(); return null; });
        talk.verb("send", request -> sent(producer(request).send(message(request))));
        talk.verb("send_one_way", request -> { producer(request).sendOneway(message(request)); return null; });
        talk.verb("send_async", Producers::sendAsync);
        talk.verb("send_batch", Producers::sendBatch);
        talk.verb("send_to_queue", Producers::sendToQueue);
        talk.verb("send_selected", Producers::sendSelected);
        talk.verb("send_in_transaction", Producers::sendInTransaction);
        talk.verb("transaction_checks", request -> CHECKS.getOrDefault(request.get("key").getAsString(), new AtomicInteger()).get());
        talk.verb("request", Producers::request);
        talk.verb("recall", request -> producer(request).recallMessage(request.get("topic").getAsString(), request.get("handle").getAsString()));
    }

    private static Object start(JsonObject request) throws Exception {
        String group = request.get("group").getAsString();
        boolean transactions = request.has("transactions");
        DefaultMQProducer producer = transactions ? new TransactionMQProducer(group) : new DefaultMQProducer(group);
        if (transactions) ((TransactionMQProducer) producer).setTransactionListener(new Listener());
        producer.setNamesrvAddr(request.get("namesrv").getAsString());
        producer.setInstanceName(request.get("name").getAsString()); // a client of its own
        producer.setSendMsgTimeout(Talk.number(request, "timeout_ms", 10000));
        producer.setRetryTimesWhenSendFailed(Talk.number(request, "retries", 2));
        producer.setPollNameServerInterval(1000);
        producer.setCompressMsgBodyOverHowmuch(Talk.number(request, "compress_over", 4096));
        producer.start();
        PRODUCERS.put(request.get("name").getAsString(), producer);
        return null;
    }

    private static DefaultMQProducer producer(JsonObject request) { return PRODUCERS.get(request.get("name").getAsString()); }

    static Message message(JsonObject request) {
        byte[] body = request.has("body_size") ? bodyOf(request.get("body_size").getAsInt()) : request.get("body").getAsString().getBytes(StandardCharsets.UTF_8);
        Message message = new Message(request.get("topic").getAsString(), body);
        if (request.has("tag")) message.setTags(request.get("tag").getAsString());
        if (request.has("keys")) message.setKeys(request.get("keys").getAsString());
        if (request.has("properties")) request.getAsJsonObject("properties").entrySet().forEach(e -> message.putUserProperty(e.getKey(), e.getValue().getAsString()));
        if (request.has("priority")) message.setPriority(request.get("priority").getAsInt());
        if (request.has("delay_level")) message.setDelayTimeLevel(request.get("delay_level").getAsInt());
        if (request.has("deliver_after_ms")) message.setDeliverTimeMs(System.currentTimeMillis() + request.get("deliver_after_ms").getAsLong());
        return message;
    }

    /** Text that compresses well, so that size over the limit shows whether the body was compressed. */
    private static byte[] bodyOf(int size) {
        byte[] body = new byte[size];
        for (int i = 0; i < size; i++) body[i] = (byte) ('a' + i % 26);
        return body;
    }

    static Map<String, Object> sent(SendResult result) {
        Map<String, Object> line = new LinkedHashMap<>();
        line.put("status", result.getSendStatus().name());
        line.put("msg_id", result.getMsgId());
        line.put("offset_msg_id", result.getOffsetMsgId());
        line.put("broker", result.getMessageQueue().getBrokerName());
        line.put("queue_id", result.getMessageQueue().getQueueId());
        line.put("queue_offset", result.getQueueOffset());
        line.put("transaction_id", result.getTransactionId());
        line.put("recall_handle", result.getRecallHandle());
        return line;
    }

    /** count: so many of them in flight at once; answered in order. */
    private static Object sendAsync(JsonObject request) throws Exception {
        List<CompletableFuture<Object>> answers = new ArrayList<>();
        for (int i = 0; i < Talk.number(request, "count", 1); i++) {
            CompletableFuture<Object> answer = new CompletableFuture<>();
            answers.add(answer);
            Message message = message(request);
            message.setBody((new String(message.getBody(), StandardCharsets.UTF_8) + i).getBytes(StandardCharsets.UTF_8));
            producer(request).send(message, new SendCallback() {
                @Override public void onSuccess(SendResult result) { answer.complete(sent(result)); }
                @Override public void onException(Throwable e) { answer.completeExceptionally(e); }
            });
        }
        List<Object> lines = new ArrayList<>();
        for (CompletableFuture<Object> answer : answers) lines.add(answer.get(30, TimeUnit.SECONDS));
        return lines;
    }

    /** bodies: one message each. */
    private static Object sendBatch(JsonObject request) throws Exception {
        List<Message> messages = new ArrayList<>();
        for (JsonElement body : request.getAsJsonArray("bodies")) {
            JsonObject one = request.deepCopy();
            one.add("body", body);
            messages.add(message(one));
        }
        return sent(producer(request).send(messages));
    }

    private static Object sendToQueue(JsonObject request) throws Exception {
        for (MessageQueue queue : producer(request).fetchPublishMessageQueues(request.get("topic").getAsString()))
            if (queue.getQueueId() == request.get("queue_id").getAsInt()) return sent(producer(request).send(message(request), queue));
        throw new IllegalArgumentException("no such queue");
    }

    /** The queue is chosen by the hash of `group`, by the client's own selector. */
    private static Object sendSelected(JsonObject request) throws Exception {
        return sent(producer(request).send(message(request), new org.apache.rocketmq.client.producer.selector.SelectMessageQueueByHash(), request.get("group").getAsString()));
    }

    /** answer: what the local transaction says; check_answer: what the check-back says; of COMMIT_MESSAGE, ROLLBACK_MESSAGE, UNKNOW. */
    private static Object sendInTransaction(JsonObject request) throws Exception {
        CHECK_ANSWERS.put(request.get("keys").getAsString(), Talk.text(request, "check_answer", "UNKNOW"));
        TransactionSendResult result = ((TransactionMQProducer) producer(request)).sendMessageInTransaction(message(request), request.get("answer").getAsString());
        Map<String, Object> line = sent(result);
        line.put("state", result.getLocalTransactionState().name());
        return line;
    }

    private static class Listener implements TransactionListener {
        @Override public LocalTransactionState executeLocalTransaction(Message message, Object answer) { return LocalTransactionState.valueOf((String) answer); }
        @Override public LocalTransactionState checkLocalTransaction(MessageExt message) {
            CHECKS.computeIfAbsent(message.getKeys(), key -> new AtomicInteger()).incrementAndGet();
            return LocalTransactionState.valueOf(CHECK_ANSWERS.getOrDefault(message.getKeys(), "UNKNOW"));
        }
    }

    private static Object request(JsonObject request) throws Exception {
        Message reply = producer(request).request(message(request), 20000);
        return new String(reply.getBody(), StandardCharsets.UTF_8);
    }
}
