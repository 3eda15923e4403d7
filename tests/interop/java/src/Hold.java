import java.io.*;
import java.nio.charset.StandardCharsets;
import java.nio.file.*;
import java.util.*;
import org.apache.rocketmq.common.TopicConfig;
import org.apache.rocketmq.store.PutMessageResult;

/**
 * The real broker on a store, without a tier, while somebody else looks at it.
 * usage: Hold STORE NAMESRV_PORT BROKER_PORT [KEY=VALUE ...]
 * Says "ready". Then one request a line, each answered by its own line: "put TOPIC QUEUE COUNT" once all can be got, "exit" (or the
 * end of input) once the broker has stopped cleanly. Logs go to stderr.
 */
public class Hold {
    static PrintStream out;

    public static void main(String[] a) throws Exception {
        out = System.out;
        System.setOut(System.err);
        String store = Paths.get(a[0]).toAbsolutePath().toString();
        int ns = Integer.parseInt(a[1]), br = Integer.parseInt(a[2]);
        Properties conf = Node.baseConf(store, ns, br);
        conf.setProperty("timerWheelEnable", "false");
        for (int i = 3; i < a.length; i++) conf.setProperty(a[i].substring(0, a[i].indexOf('=')), a[i].substring(a[i].indexOf('=') + 1));
        Node n = new Node(store, ns, br);
        n.start(conf);
        say("ready");
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        String line = in.readLine();
        for (; line != null && !line.equals("exit"); line = in.readLine()) {
            put(n, line.split(" "));
            say(line);
        }
        n.stop();
        say("exit");
        Runtime.getRuntime().halt(0);
    }

    static void put(Node n, String[] request) throws Exception {
        String topic = request[1];
        int queue = Integer.parseInt(request[2]), count = Integer.parseInt(request[3]);
        if (n.bc.getTopicConfigManager().selectTopicConfig(topic) == null) n.bc.getTopicConfigManager().updateTopicConfig(new TopicConfig(topic, queue + 1, queue + 1, 6));
        long end = n.local().getMaxOffsetInQueue(topic, queue) + count;
        for (int k = 0; k < count; k++) {
            PutMessageResult r = n.store().putMessage(Bench.msg(topic, queue, ("put by Java " + k).getBytes(StandardCharsets.UTF_8), k));
            if (!r.isOk()) throw new IllegalStateException(topic + ": " + r.getPutMessageStatus());
        }
        while (n.local().getMaxOffsetInQueue(topic, queue) < end) Thread.sleep(10);
    }

    static void say(String answer) {
        out.println(answer);
        out.flush();
    }
}
