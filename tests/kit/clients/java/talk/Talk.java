import com.google.gson.*;
import java.io.*;
import java.nio.charset.StandardCharsets;
import java.util.*;

/**
 * The talk of a client program with its test: one JSON object a line on stdin, one answer a line on stdout (tests/kit/clients/program.py).
 * usage: Talk CLASS... Each CLASS has `public static void register(Talk talk)`, which says its verbs; logs and prints go to stderr.
 */
public class Talk {
    public interface Verb { Object run(JsonObject request) throws Throwable; }

    private static final Gson GSON = new GsonBuilder().serializeNulls().disableHtmlEscaping().create();
    private final Map<String, Verb> verbs = new HashMap<>();
    private PrintStream out;

    public void verb(String name, Verb verb) {
        if (verbs.put(name, verb) != null) throw new IllegalStateException("two verbs " + name);
    }

    public static void main(String[] classes) throws Exception {
        Talk talk = new Talk();
        talk.out = new PrintStream(new FileOutputStream(FileDescriptor.out), true, "UTF-8");
        System.setOut(System.err);
        for (String name : classes) Class.forName(name).getMethod("register", Talk.class).invoke(null, talk);
        talk.serve();
        Runtime.getRuntime().halt(0); // clients leave threads behind
    }

    private void serve() throws IOException {
        answer("ok", "ready", null);
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            JsonObject request = JsonParser.parseString(line).getAsJsonObject();
            String name = request.get("verb").getAsString();
            try {
                Verb verb = verbs.get(name);
                if (verb == null) throw new IllegalArgumentException("no verb " + name);
                answer("ok", verb.run(request), null);
            } catch (Throwable e) {
                e.printStackTrace();
                answer("error", String.valueOf(e.getMessage()), e);
            }
        }
    }

    private void answer(String kind, Object value, Throwable e) {
        Map<String, Object> line = new LinkedHashMap<>();
        line.put(kind, value);
        if (e != null) {
            line.put("type", e.getClass().getSimpleName());
            line.put("code", code(e));
        }
        out.println(GSON.toJson(line));
    }

    /** Most errors of the clients have a response code, under one of two names. */
    private static Object code(Throwable e) {
        for (String name : new String[] {"getResponseCode", "getCode"}) {
            try { return e.getClass().getMethod(name).invoke(e); } catch (ReflectiveOperationException none) { /* the other, or none */ }
        }
        return null;
    }

    public static String text(JsonObject request, String name, String otherwise) {
        return request.has(name) && !request.get(name).isJsonNull() ? request.get(name).getAsString() : otherwise;
    }

    public static int number(JsonObject request, String name, int otherwise) {
        return request.has(name) && !request.get(name).isJsonNull() ? request.get(name).getAsInt() : otherwise;
    }
}
