import com.google.gson.*;
import java.io.*;
import java.util.*;
import org.apache.rocketmq.tools.command.MQAdminStartup;

/** mqadmin 5.5.0 in this process, command by command: `mqadmin` (args) runs one and gives what it printed, on either stream. */
public class Admin {
    public static void register(Talk talk) { talk.verb("mqadmin", Admin::run); }

    private static Object run(JsonObject request) throws Exception {
        List<String> args = new ArrayList<>();
        for (JsonElement arg : request.getAsJsonArray("args")) args.add(arg.getAsString());
        ByteArrayOutputStream printed = new ByteArrayOutputStream();
        PrintStream both = new PrintStream(printed, true, "UTF-8"), out = System.out, err = System.err;
        forgetCommands();
        System.setOut(both);
        System.setErr(both);
        try {
            MQAdminStartup.main0(args.toArray(new String[0]), null);
        } finally {
            System.setOut(out);
            System.setErr(err);
        }
        return printed.toString("UTF-8");
    }

    /** Commands are made anew with each run, as in a process of its own: some keep a client that they have shut down. */
    private static void forgetCommands() throws ReflectiveOperationException {
        java.lang.reflect.Field commands = MQAdminStartup.class.getDeclaredField("SUB_COMMANDS");
        commands.setAccessible(true);
        ((List<?>) commands.get(null)).clear();
    }
}
