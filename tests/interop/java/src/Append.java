import com.alibaba.fastjson2.*;
import java.io.Writer;
import java.nio.charset.StandardCharsets;
import java.nio.file.*;
import java.util.*;
import org.apache.rocketmq.common.TopicConfig;
import org.apache.rocketmq.store.PutMessageResult;

/**
 * Takes a store and its tier over as the Java broker, appends, uploads, stops cleanly; works in place.
 * usage: Append ROOT MANIFEST.json NAMESRV_PORT BROKER_PORT COUNT OUT.json TOPIC:QUEUE ...
 * COUNT messages go to each queue named. OUT: every message of the local store as the broker sees it afterwards, with its
 * place in the tier. ROOT/store is the whole store (with config/tieredStoreMetadata.json), ROOT/tiered the tier.
 */
public class Append {
    public static void main(String[] a) throws Exception {
        String root = Paths.get(a[0]).toAbsolutePath().toString();
        JSONObject brokerConf = JSON.parseObject(new String(Files.readAllBytes(Paths.get(a[1])), StandardCharsets.UTF_8)).getJSONObject("brokerConf");
        int ns = Integer.parseInt(a[2]), br = Integer.parseInt(a[3]), count = Integer.parseInt(a[4]);
        Node n = new Node(root + "/store", ns, br);
        Properties c = Node.baseConf(root + "/store", ns, br);
        for (String k : brokerConf.keySet()) if (!k.startsWith("storePath") && !k.equals("listenPort") && !k.equals("namesrvAddr") && !k.equals("tieredStoreFilePath")) c.setProperty(k, brokerConf.getString(k));
        Node.tiered(c, root + "/tiered");
        c.setProperty("timerWheelEnable", "false");
        n.start(c);
        JSONObject out = new JSONObject(new LinkedHashMap<>());
        out.put("atStart", n.queueState());
        for (int i = 6; i < a.length; i++) {
            String topic = a[i].split(":")[0];
            int queue = Integer.parseInt(a[i].split(":")[1]);
            if (n.bc.getTopicConfigManager().selectTopicConfig(topic) == null) n.bc.getTopicConfigManager().updateTopicConfig(new TopicConfig(topic, queue + 1, queue + 1, 6));
            for (int k = 0; k < count; k++) {
                PutMessageResult r = n.store().putMessage(Bench.msg(topic, queue, ("appended by Java " + k).getBytes(StandardCharsets.UTF_8), 1000000L + k));
                if (!r.isOk()) throw new IllegalStateException(a[i] + ": " + r.getPutMessageStatus());
            }
        }
        Thread.sleep(1500); // the reput thread makes the queues, and the group commit time passes
        boolean complete = n.waitTiered(60000);
        JSONArray messages = n.walk();
        n.addTiered(messages);
        out.put("tieredComplete", complete);
        out.put("afterAppend", n.queueState());
        out.put("messages", messages);
        try (Writer w = Files.newBufferedWriter(Paths.get(a[5]))) { w.write(JSON.toJSONString(out, JSONWriter.Feature.PrettyFormat, JSONWriter.Feature.WriteMapNullValue)); }
        n.stop();
        System.out.println("RESULT appended, tiered complete=" + complete);
        System.out.flush();
        Runtime.getRuntime().halt(complete ? 0 : 1);
    }
}
