import java.nio.file.Files;
import java.nio.file.Path;
import java.util.HexFormat;
import java.util.zip.ZipEntry;
import java.util.zip.ZipInputStream;

/** Prints what ZipInputStream finds in each file: "file", then name and contents in hexadecimal, then how it ended. */
public class ReadZips {
    public static void main(String[] arguments) throws Exception {
        for (String argument : arguments) {
            System.out.println("file");
            try (var stream = new ZipInputStream(Files.newInputStream(Path.of(argument)))) {
                for (ZipEntry entry; (entry = stream.getNextEntry()) != null; ) {
                    HexFormat hex = HexFormat.of();
                    byte[] contents = stream.readAllBytes();
                    System.out.println("x" + hex.formatHex(entry.getName().getBytes("UTF-8")) + " x" + hex.formatHex(contents));
                }
                System.out.println("end");
            } catch (Exception error) {
                System.out.println("error " + error);
            }
        }
    }
}
