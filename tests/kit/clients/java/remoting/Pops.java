import com.google.gson.JsonObject;
import java.nio.charset.StandardCharsets;
import java.util.*;
import java.util.concurrent.*;
import org.apache.rocketmq.client.consumer.*;
import org.apache.rocketmq.client.impl.MQClientAPIImpl;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.message.*;
import org.apache.rocketmq.remoting.protocol.header.*;

/**
 * Pops of the client's own calls, for light queues, which no consumer of the client can name since they have no route. `start_pops` (namesrv)
 * first. `pop` (address, topic, group; count, invisible_ms, wait_ms) gives [body, offset, deliveries] of each message, `ack` and `change`
 * (address, topic, group, body; invisible_ms) name a message by its body.
 */
public class Pops {
    private static final Map<String, String> HANDLES = new HashMap<>();
    private static DefaultMQProducer client;

    public static void register(Talk talk) {
        talk.verb("start_pops", request -> {
            client = new DefaultMQProducer("poppers");
            client.setNamesrvAddr(request.get("namesrv").getAsString());
            client.setInstanceName("popper" + System.nanoTime()); // a client of its own
            client.start();
            return null;
        });
        talk.verb("send_light", Pops::send);
        talk.verb("pop", Pops::pop);
        talk.verb("ack", Pops::ack);
        talk.verb("change", Pops::change);
    }

    private static MQClientAPIImpl api() { return client.getDefaultMQProducerImpl().getMqClientFactory().getMQClientAPIImpl(); }
    private static String address(JsonObject request) { return request.get("address").getAsString(); }

    private static Object send(JsonObject request) throws Exception {
        Message message = new Message(request.get("topic").getAsString(), request.get("body").getAsString().getBytes(StandardCharsets.UTF_8));
        MessageAccessor.putProperty(message, MessageConst.PROPERTY_INNER_MULTI_DISPATCH, request.get("queues").getAsString());
        return client.send(message).getSendStatus().name();
    }

    private static Object pop(JsonObject request) throws Exception {
        PopMessageRequestHeader header = new PopMessageRequestHeader();
        header.setConsumerGroup(request.get("group").getAsString());
        header.setTopic(request.get("topic").getAsString());
        header.setQueueId(Talk.number(request, "queue_id", -1));
        header.setMaxMsgNums(Talk.number(request, "count", 32));
        header.setInvisibleTime(Talk.number(request, "invisible_ms", 60000));
        header.setPollTime(Talk.number(request, "wait_ms", 0));
        header.setBornTime(System.currentTimeMillis());
        header.setInitMode(0);
        header.setExpType("TAG");
        header.setExp("*");
        CompletableFuture<PopResult> answer = new CompletableFuture<>();
        api().popMessageAsync("labBroker", address(request), header, 30000, new PopCallback() {
            @Override public void onSuccess(PopResult result) { answer.complete(result); }
            @Override public void onException(Throwable e) { answer.completeExceptionally(e); }
        });
        List<Object[]> popped = new ArrayList<>();
        PopResult result = answer.get(30, TimeUnit.SECONDS);
        if (result.getPopStatus() != PopStatus.FOUND) return popped;
        for (MessageExt message : result.getMsgFoundList()) {
            String body = new String(message.getBody(), StandardCharsets.UTF_8), handle = message.getProperty(MessageConst.PROPERTY_POP_CK);
            HANDLES.put(body, handle);
            popped.add(new Object[] {body, Long.parseLong(handle.split(" ")[7]), message.getReconsumeTimes()});
        }
        return popped;
    }

    private static Object ack(JsonObject request) throws Exception {
        AckMessageRequestHeader header = new AckMessageRequestHeader();
        String handle = HANDLES.get(request.get("body").getAsString());
        String[] parts = handle.split(" ");
        header.setConsumerGroup(request.get("group").getAsString());
        header.setTopic(ExtraInfoUtil.getRealTopic(parts, request.get("topic").getAsString(), header.getConsumerGroup()));
        header.setQueueId(Integer.parseInt(parts[6]));
        header.setOffset(Long.parseLong(parts[7]));
        header.setExtraInfo(handle);
        Answer answer = new Answer();
        api().ackMessageAsync(address(request), 10000, answer, header);
        return answer.done.get(10, TimeUnit.SECONDS).getStatus().name();
    }

    private static Object change(JsonObject request) throws Exception {
        ChangeInvisibleTimeRequestHeader header = new ChangeInvisibleTimeRequestHeader();
        String body = request.get("body").getAsString(), handle = HANDLES.get(body);
        String[] parts = handle.split(" ");
        header.setConsumerGroup(request.get("group").getAsString());
        header.setTopic(ExtraInfoUtil.getRealTopic(parts, request.get("topic").getAsString(), header.getConsumerGroup()));
        header.setQueueId(Integer.parseInt(parts[6]));
        header.setOffset(Long.parseLong(parts[7]));
        header.setExtraInfo(handle);
        header.setInvisibleTime(Long.valueOf(Talk.number(request, "invisible_ms", 1000)));
        Answer answer = new Answer();
        api().changeInvisibleTimeAsync("labBroker", address(request), header, 10000, answer);
        AckResult result = answer.done.get(10, TimeUnit.SECONDS);
        HANDLES.put(body, result.getExtraInfo());
        return result.getStatus().name();
    }

    private static class Answer implements AckCallback {
        final CompletableFuture<AckResult> done = new CompletableFuture<>();
        @Override public void onSuccess(AckResult result) { done.complete(result); }
        @Override public void onException(Throwable e) { done.completeExceptionally(e); }
    }
}
