import org.apache.rocketmq.client.apis.ClientServiceProvider;

/** Apache's Java client over gRPC: its verbs. */
public class Clients {
    public static void register(Talk talk) {
        talk.verb("version", request -> ClientServiceProvider.loadService().getClass().getName());
    }
}
