import org.apache.rocketmq.common.MQVersion;

/** The 4.9.8 client's verbs. */
public class Producers4 {
    public static void register(Talk talk) {
        talk.verb("version", request -> MQVersion.getVersionDesc(MQVersion.CURRENT_VERSION));
    }
}
