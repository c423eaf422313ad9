import java.nio.ByteBuffer;
import java.nio.channels.FileChannel;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.atomic.AtomicLong;
import java.util.stream.LongStream;

/** What Java programs need of a system: threads, a collector at work, mapped files, processes. */
public final class Check {
    public static void main(String[] args) throws Exception {
        want(LongStream.rangeClosed(1, 2_000_000).parallel().map(n -> n * n % 1009).sum(),
             LongStream.rangeClosed(1, 2_000_000).map(n -> n * n % 1009).sum(), "parallel stream");

        AtomicLong sum = new AtomicLong();
        CountDownLatch done = new CountDownLatch(32);
        for (int t = 0; t < 32; t++) {
            new Thread(() -> {
                for (int i = 0; i < 10_000; i++) sum.incrementAndGet();
                done.countDown();
            }).start();
        }
        done.await();
        want(sum.get(), 320_000, "threads");

        List<byte[]> kept = new ArrayList<>();
        long total = 0;
        for (int i = 0; i < 20_000; i++) {
            byte[] piece = new byte[16 << 10];
            piece[i % piece.length] = 1;
            if (i % 100 == 0) kept.add(piece);
            total += piece[i % piece.length];
        }
        want(total, 20_000, "garbage collection");
        want(kept.size(), 200, "garbage collection");

        Path file = Files.createTempFile("check", ".bin");
        try (FileChannel ch = FileChannel.open(file, StandardOpenOption.READ, StandardOpenOption.WRITE)) {
            var mapped = ch.map(FileChannel.MapMode.READ_WRITE, 0, 1 << 20);
            for (int i = 0; i < 1 << 20; i++) mapped.put(i, (byte) i);
            mapped.force();
            ByteBuffer read = ByteBuffer.allocate(256);
            ch.read(read, 512);
            for (int i = 0; i < 256; i++) want(read.get(i), (byte) i, "mapped file");
        }
        Files.delete(file);

        Process p = new ProcessBuilder("sh", "-c", "exit 7").start();
        want(p.waitFor(), 7, "process");
        System.out.println("all right");
    }

    static void want(long got, long want, String what) {
        if (got != want) throw new AssertionError(what + ": " + got + ", not " + want);
    }
}
