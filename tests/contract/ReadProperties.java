import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Properties;

/** Prints what java.util.Properties reads from a file: a pair a line, key and value as hexadecimal UTF-16. */
public class ReadProperties {
    public static void main(String[] arguments) throws Exception {
        Properties properties = new Properties();
        try (var stream = Files.newInputStream(Path.of(arguments[0]))) {
            properties.load(stream);
        }
        for (String key : properties.stringPropertyNames()) {
            System.out.println(hex(key) + " " + hex(properties.getProperty(key)));
        }
    }

    private static String hex(String text) {
        StringBuilder out = new StringBuilder("x");
        for (char unit : text.toCharArray()) {
            out.append(String.format("%04x", (int) unit));
        }
        return out.toString();
    }
}
