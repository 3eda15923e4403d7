import com.google.gson.*;
import java.nio.charset.StandardCharsets;
import java.util.*;
import org.apache.rocketmq.client.QueryResult;
import org.apache.rocketmq.client.consumer.*;
import org.apache.rocketmq.common.message.*;

/**
 * Reads queues from where a test says, and asks for offsets, times and keys, as mqadmin does. `start_reader` (namesrv, group) first.
 * `read_queue` (topic, queue_id, from, until) follows the broker's answers from an offset and gives [queue_offset, body] in the order
 * that they came; every pull that found nothing although there was something ends it.
 */
public class Readers {
    private static DefaultMQPullConsumer reader;

    public static void register(Talk talk) {
        talk.verb("start_reader", Readers::start);
        talk.verb("queues", request -> queues(request).size());
        talk.verb("read_queue", Readers::readQueue);
        talk.verb("min_offset", request -> reader.minOffset(queue(request)));
        talk.verb("max_offset", request -> reader.maxOffset(queue(request)));
        talk.verb("search_offset", request -> reader.searchOffset(queue(request), request.get("time_ms").getAsLong()));
        talk.verb("earliest_time", request -> reader.earliestMsgStoreTime(queue(request)));
        talk.verb("query_by_key", Readers::queryByKey);
        talk.verb("view", request -> line(reader.viewMessage(request.get("topic").getAsString(), request.get("msg_id").getAsString())));
    }

    private static Object start(JsonObject request) throws Exception {
        if (reader != null) reader.shutdown();
        reader = new DefaultMQPullConsumer(request.get("group").getAsString());
        reader.setNamesrvAddr(request.get("namesrv").getAsString());
        reader.setInstanceName("reader" + System.nanoTime()); // a client of its own
        reader.start();
        return null;
    }

    private static Set<MessageQueue> queues(JsonObject request) throws Exception { return reader.fetchSubscribeMessageQueues(request.get("topic").getAsString()); }

    private static MessageQueue queue(JsonObject request) throws Exception {
        for (MessageQueue queue : queues(request))
            if (queue.getQueueId() == request.get("queue_id").getAsInt()) return queue;
        throw new IllegalArgumentException("no such queue");
    }

    private static Object readQueue(JsonObject request) throws Exception {
        MessageQueue queue = queue(request);
        long next = request.get("from").getAsLong(), until = request.get("until").getAsLong(), end = System.currentTimeMillis() + 50000;
        List<Object[]> found = new ArrayList<>();
        while (next < until) {
            PullResult result = reader.pull(queue, "*", next, Talk.number(request, "most", 32), 10000);
            if (result.getPullStatus() == PullStatus.FOUND)
                for (MessageExt message : result.getMsgFoundList())
                    found.add(new Object[] {message.getQueueOffset(), new String(message.getBody(), StandardCharsets.UTF_8)});
            else if (System.currentTimeMillis() > end || result.getNextBeginOffset() != next)
                throw new IllegalStateException(queue + " at " + next + " of " + until + ": " + result);
            next = result.getNextBeginOffset();
        }
        return found;
    }

    private static Object queryByKey(JsonObject request) throws Exception {
        long begin = request.has("begin_ms") ? request.get("begin_ms").getAsLong() : 0, end = request.has("end_ms") ? request.get("end_ms").getAsLong() : Long.MAX_VALUE;
        QueryResult result = reader.queryMessage(request.get("topic").getAsString(), request.get("key").getAsString(), Talk.number(request, "most", 32), begin, end);
        List<Object> lines = new ArrayList<>();
        for (MessageExt message : result.getMessageList()) lines.add(line(message));
        return lines;
    }

    private static Object line(MessageExt message) {
        Map<String, Object> line = new LinkedHashMap<>();
        line.put("body", new String(message.getBody(), StandardCharsets.UTF_8));
        line.put("keys", message.getKeys());
        line.put("queue_id", message.getQueueId());
        line.put("queue_offset", message.getQueueOffset());
        line.put("store_timestamp", message.getStoreTimestamp());
        return line;
    }
}
