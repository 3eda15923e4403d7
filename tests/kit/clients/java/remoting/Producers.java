import org.apache.rocketmq.common.MQVersion;

/** The 5.5.0 client's producers: their verbs. */
public class Producers {
    public static void register(Talk talk) {
        talk.verb("version", request -> MQVersion.getVersionDesc(MQVersion.CURRENT_VERSION));
    }
}
