import com.google.gson.JsonObject;
import java.nio.charset.StandardCharsets;
import java.util.*;
import java.util.concurrent.*;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.*;
import org.apache.rocketmq.client.producer.*;
import org.apache.rocketmq.common.MQVersion;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.*;

/** The 4.9.8 client's verbs: sync sends from several threads, and a push consumer from the first offset. */
public class Producers4 {
    private static final List<String> RECEIVED = Collections.synchronizedList(new ArrayList<>());

    public static void register(Talk talk) {
        talk.verb("version", request -> MQVersion.getVersionDesc(MQVersion.CURRENT_VERSION));
        talk.verb("send_from_threads", Producers4::sendFromThreads);
        talk.verb("consume", Producers4::consume);
        talk.verb("consumed", request -> { synchronized (RECEIVED) { return new ArrayList<>(RECEIVED); } });
    }

    /** threads * each messages, `t-i` of thread t; answers how many had SEND_OK. */
    private static Object sendFromThreads(JsonObject request) throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer("senders4");
        producer.setNamesrvAddr(request.get("namesrv").getAsString());
        producer.setSendMsgTimeout(10000);
        producer.start();
        int threads = request.get("threads").getAsInt(), each = request.get("each").getAsInt();
        ExecutorService pool = Executors.newFixedThreadPool(threads);
        List<Future<Integer>> counts = new ArrayList<>();
        for (int t = 0; t < threads; t++) {
            int thread = t;
            counts.add(pool.submit(() -> {
                int sent = 0;
                for (int i = 0; i < each; i++) {
                    byte[] body = (thread + "-" + i).getBytes(StandardCharsets.UTF_8);
                    if (producer.send(new Message(request.get("topic").getAsString(), body)).getSendStatus() == SendStatus.SEND_OK) sent++;
                }
                return sent;
            }));
        }
        int sent = 0;
        for (Future<Integer> count : counts) sent += count.get();
        pool.shutdown();
        producer.shutdown();
        return sent;
    }

    private static Object consume(JsonObject request) throws Exception {
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer("receivers4");
        consumer.setNamesrvAddr(request.get("namesrv").getAsString());
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(request.get("topic").getAsString(), "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            for (MessageExt message : messages) RECEIVED.add(new String(message.getBody(), StandardCharsets.UTF_8));
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        return null;
    }
}
