import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.HexFormat;
import java.util.regex.Pattern;
import java.util.regex.PatternSyntaxException;

/** Answers each line, an expression in hexadecimal and topic names, with "refused" or with one digit for each name. */
public class JavaMatches {
    public static void main(String[] arguments) throws Exception {
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            System.out.println(answer(line.split(" ")));
            System.out.flush();
        }
    }

    private static String answer(String[] words) {
        Pattern pattern;
        try {
            byte[] bytes = HexFormat.of().parseHex(words[0].substring(1));
            pattern = Pattern.compile(new String(bytes, StandardCharsets.UTF_8));
        } catch (PatternSyntaxException refused) {
            return "refused";
        }
        StringBuilder found = new StringBuilder();
        for (int name = 1; name < words.length; name++) {
            found.append(pattern.matcher(words[name]).matches() ? '1' : '0');
        }
        return found.toString();
    }
}
