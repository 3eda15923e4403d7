import java.io.*;
import java.nio.charset.StandardCharsets;
import org.apache.rocketmq.broker.filter.MessageEvaluationContext;
import org.apache.rocketmq.common.message.MessageDecoder;
import org.apache.rocketmq.filter.FilterFactory;
import org.apache.rocketmq.filter.expression.Expression;

/**
 * What the broker's own SQL92 filter says. stdin: an expression, a tab, properties as in a record, a line each;
 * stdout: true, false (unknown and errors too) or refused, a line each.
 */
public class Filters {
    public static void main(String[] args) throws Exception {
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        StringBuilder out = new StringBuilder();
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            int tab = line.indexOf('\t');
            out.append(verdict(line.substring(0, tab), line.substring(tab + 1))).append('\n');
        }
        System.out.print(out);
        System.out.flush();
        Runtime.getRuntime().halt(0);
    }

    private static String verdict(String text, String properties) {
        Expression expression;
        try {
            expression = FilterFactory.INSTANCE.get("SQL92").compile(text);
        } catch (Exception e) {
            return "refused";
        }
        try {
            return String.valueOf(Boolean.TRUE.equals(expression.evaluate(new MessageEvaluationContext(MessageDecoder.string2messageProperties(properties)))));
        } catch (Exception e) {
            return "false";
        }
    }
}
