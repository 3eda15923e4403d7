import com.alibaba.fastjson2.*;
import java.io.*;
import java.lang.reflect.Method;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.nio.file.*;
import java.util.*;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.common.*;
import org.apache.rocketmq.common.message.*;
import org.apache.rocketmq.store.*;
import org.apache.rocketmq.tieredstore.core.*;
import org.apache.rocketmq.tieredstore.common.GetMessageResultExt;
import org.apache.rocketmq.tieredstore.file.*;
import org.apache.rocketmq.tieredstore.index.*;
import org.apache.rocketmq.tieredstore.metadata.*;

/**
 * The Java side of scripts/bench: one JVM that stays warm. usage: Peer <workDir>
 * Reads one JSON request a line ({"row": ..., parameters}), runs one pass of that row, prints one JSON line:
 * {"count": n, "seconds": s, ...} or {"error": "..."}. "exit" (or end of input) ends it. Logs go to stderr.
 */
public class Peer {
    static PrintStream out;
    static Path work;
    static Bench.S reading;
    static String readingKey = "";
    static String filledKey = "", openKey = "";
    static final Map<String, Random> RANDOMS = new HashMap<>();
    static final Map<String, String> SMALL_FILES = Map.of("mappedFileSizeConsumeQueue", "20000", "mappedFileSizeCommitLog", "67108864");

    public static void main(String[] a) throws Exception {
        out = System.out;
        System.setOut(System.err);
        work = Paths.get(a[0]).toAbsolutePath();
        Files.createDirectories(work);
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = in.readLine(); line != null && !line.equals("exit"); line = in.readLine()) {
            JSONObject answer;
            try {
                answer = run(JSON.parseObject(line));
            } catch (Throwable e) {
                e.printStackTrace();
                answer = Bench.J("error", e.toString());
            }
            out.println(answer.toJSONString());
            out.flush();
        }
        Runtime.getRuntime().halt(0);
    }

    static JSONObject run(JSONObject p) throws Exception {
        // A store that was shut down leaves its files open until they are collected.
        System.gc();
        TimeUnit.MILLISECONDS.sleep(200);
        switch (p.getString("row")) {
            case "env": return Bench.J("java", System.getProperty("java.version"), "vm", System.getProperty("java.vm.name"), "rocketmq", "5.5.0", "max_heap_mb", Runtime.getRuntime().maxMemory() >> 20);
            case "put": return put(p);
            case "reput": return reput(p);
            case "upload": return upload(p);
            case "read-block": return readBlock(p);
            case "read-fetcher": return readSequential(p, false);
            case "read-store": return readSequential(p, true);
            case "read-random": return readRandom(p);
            case "query-key": return queryKey(p);
            case "offset-by-time": return offsetByTime(p);
            case "index-put": return indexPut(p);
            case "index-compact": return indexCompact(p);
            case "open": return open(p);
            default: return Bench.J("error", "unknown row " + p.getString("row"));
        }
    }

    static JSONObject took(long count, long ns, Object... more) {
        JSONObject o = Bench.J("count", count, "seconds", ns / 1e9);
        for (int i = 0; i < more.length; i += 2) o.put((String) more[i], more[i + 1]);
        return o;
    }

    static byte[] body(int size) {
        byte[] b = new byte[size];
        new Random(1).nextBytes(b);
        for (int i = 0; i < size; i++) b[i] = (byte) (32 + (b[i] & 63));
        return b;
    }

    /** `ready` messages a queue ring; a message may be put again, the store sets all that it writes into it. */
    static MessageExtBrokerInner[] ready(int queues, byte[] body) {
        MessageExtBrokerInner[] m = new MessageExtBrokerInner[4096];
        for (int i = 0; i < m.length; i++) m[i] = Bench.msg(Bench.TOPIC, i % queues, body, i);
        return m;
    }

    static MessageExtBatch batch(int queueId, byte[] body, int first, int count) {
        List<Message> l = new ArrayList<>(count);
        for (int j = 0; j < count; j++) {
            Message m = new Message(Bench.TOPIC, "TagA", "key-" + (first + j), body);
            MessageAccessor.putProperty(m, "UNIQ_KEY", MessageClientIDSetter.createUniqID());
            l.add(m);
        }
        MessageExtBatch b = new MessageExtBatch();
        b.setTopic(Bench.TOPIC);
        b.setQueueId(queueId);
        b.setBornTimestamp(System.currentTimeMillis());
        b.setBornHost(Bench.HOST);
        b.setStoreHost(Bench.HOST);
        b.setPropertiesString("");
        b.setBody(MessageDecoder.encodeMessages(l));
        return b;
    }

    /** {messages, nanoseconds}; `ready` null: each message is made inside the clock */
    static long[] puts(DefaultMessageStore d, MessageExtBrokerInner[] ready, int n, int queues, byte[] body) throws Exception {
        long t0 = System.nanoTime();
        for (int i = 0; i < n; i++) {
            MessageExtBrokerInner m = ready != null ? ready[i & 4095] : Bench.msg(Bench.TOPIC, i % queues, body, i);
            PutMessageResult r = d.putMessage(m);
            while (r.getPutMessageStatus() == PutMessageStatus.OS_PAGE_CACHE_BUSY) r = d.putMessage(m);
            if (!r.isOk()) throw new IllegalStateException("put: " + r.getPutMessageStatus());
        }
        return new long[]{n, System.nanoTime() - t0};
    }

    /** {messages, nanoseconds}; batches encoded beforehand, as a broker receives them */
    static long[] putBatches(DefaultMessageStore d, int n, int size, int queues, byte[] body) throws Exception {
        MessageExtBatch[] ready = new MessageExtBatch[64];
        byte[][] encoded = new byte[ready.length][];
        for (int i = 0; i < ready.length; i++) { ready[i] = batch(i % queues, body, i * size, size); encoded[i] = ready[i].getBody(); }
        long t0 = System.nanoTime();
        for (int i = 0; i < n / size; i++) {
            MessageExtBatch b = ready[i & 63];
            b.setBody(encoded[i & 63]);
            PutMessageResult r = d.putMessages(b);
            while (r.getPutMessageStatus() == PutMessageStatus.OS_PAGE_CACHE_BUSY) r = d.putMessages(b);
            if (!r.isOk()) throw new IllegalStateException("batch put: " + r.getPutMessageStatus());
        }
        return new long[]{n / size * size, System.nanoTime() - t0};
    }

    static void waitDispatched(DefaultMessageStore d) throws Exception {
        while (d.dispatchBehindBytes() > 0) TimeUnit.MICROSECONDS.sleep(200);
    }

    /** messages, body, queues, batch (0: single), build (make the message inside the clock) */
    static JSONObject put(JSONObject p) throws Exception {
        int n = p.getIntValue("messages"), queues = p.getIntValue("queues"), size = p.getIntValue("batch");
        byte[] body = body(p.getIntValue("body"));
        Path dir = work.resolve("put");
        Bench.rm(dir);
        Bench.S s = Bench.open(dir.toString(), false, null);
        try {
            MessageExtBrokerInner[] ready = size != 0 || p.getBooleanValue("build") ? null : ready(queues, body);
            long t0 = System.nanoTime();
            long[] put = size == 0 ? puts(s.d, ready, n, queues, body) : putBatches(s.d, n, size, queues, body);
            long made = System.nanoTime() - t0 - put[1]; // batches are encoded outside the clock
            waitDispatched(s.d);
            long t2 = System.nanoTime(), stored = 0;
            for (int q = 0; q < queues; q++) stored += s.d.getMaxOffsetInQueue(Bench.TOPIC, q);
            if (stored != put[0]) throw new IllegalStateException("stored " + stored + " of " + put[0]);
            return took(stored, t2 - t0 - made, "seconds_put", put[1] / 1e9);
        } finally {
            s.d.shutdown();
            Bench.rm(dir);
        }
    }

    /** The reput thread is stopped while messages are put (singly or in batches); its loop then runs here: consume queues and the local index. */
    static JSONObject reput(JSONObject p) throws Exception {
        int n = p.getIntValue("messages"), queues = p.getIntValue("queues"), size = p.getIntValue("batch");
        byte[] body = body(p.getIntValue("body"));
        Path dir = work.resolve("reput");
        Bench.rm(dir);
        Bench.S s = Bench.open(dir.toString(), false, null);
        try {
            ServiceThread service = (ServiceThread) Node.field(DefaultMessageStore.class, s.d, "reputMessageService");
            service.shutdown();
            long[] put = size == 0 ? puts(s.d, ready(queues, body), n, queues, body) : putBatches(s.d, n, size, queues, body);
            Method loop = service.getClass().getMethod("doReput");
            loop.setAccessible(true);
            long t0 = System.nanoTime();
            while (s.d.dispatchBehindBytes() > 0) loop.invoke(service);
            long t1 = System.nanoTime(), stored = 0;
            for (int q = 0; q < queues; q++) stored += s.d.getMaxOffsetInQueue(Bench.TOPIC, q);
            if (stored != put[0]) throw new IllegalStateException("dispatched " + stored + " of " + put[0]);
            return took(stored, t1 - t0, "seconds_put", put[1] / 1e9);
        } finally {
            s.d.shutdown();
            Bench.rm(dir);
        }
    }

    static Bench.S uploaded(Path dir, JSONObject p, long[] ns) throws Exception {
        int n = p.getIntValue("messages"), queues = p.getIntValue("queues");
        byte[] body = body(p.getIntValue("body"));
        Bench.rm(dir);
        Bench.S s = Bench.open(dir.toString(), false, null);
        puts(s.d, null, n, queues, body);
        waitDispatched(s.d);
        s.d.shutdown();
        boolean keys = !Boolean.FALSE.equals(p.getBoolean("index"));
        s = Bench.open(dir.toString(), true, Map.of("messageIndexEnable", "" + keys));
        MessageStoreDispatcherImpl dispatcher = (MessageStoreDispatcherImpl) Node.field(org.apache.rocketmq.tieredstore.TieredMessageStore.class, s.t, "dispatcher");
        List<FlatMessageFile> files = new ArrayList<>();
        for (int q = 0; q < queues; q++) {
            FlatMessageFile f = s.t.getFlatFileStore().computeIfAbsent(new MessageQueue(Bench.TOPIC, s.t.getBrokerName(), q));
            f.initOffset(0);
            files.add(f);
        }
        long t0 = System.nanoTime();
        for (boolean done = false; !done; ) {
            dispatcher.wakeup();
            TimeUnit.MILLISECONDS.sleep(1);
            done = true;
            for (FlatMessageFile f : files) done &= f.getConsumeQueueCommitOffset() >= s.d.getMaxOffsetInQueue(Bench.TOPIC, f.getMessageQueue().getQueueId());
            if (System.nanoTime() - t0 > 300e9) throw new IllegalStateException("upload takes more than 300 s");
        }
        ns[0] = System.nanoTime() - t0;
        for (FlatMessageFile f : files) ns[1] += f.getCommitLogCommitOffset();
        // the index is built behind the upload: let it be complete, then it belongs to no figure
        IndexStoreService index = (IndexStoreService) s.t.getIndexService();
        for (long last = -1, since = System.nanoTime(); keys; ) {
            long items = 0;
            for (IndexFile f : index.getTimeStoreTable().values()) items += ((IndexStoreFile) f).getIndexItemCount();
            if (items >= 2L * n || items == last && System.nanoTime() - since > 10e9) break;
            if (items != last) { last = items; since = System.nanoTime(); }
            TimeUnit.MILLISECONDS.sleep(20);
        }
        ns[2] = System.nanoTime() - t0;
        return s;
    }

    /** Posix provider as published: every commit is forced to the disk (channel `rwd` and force). */
    static JSONObject upload(JSONObject p) throws Exception {
        Path dir = work.resolve("upload");
        long[] ns = new long[3];
        Bench.S s = uploaded(dir, p, ns);
        s.t.shutdown();
        Bench.rm(dir);
        return took(p.getIntValue("messages"), ns[0], "bytes", ns[1], "seconds_with_index", ns[2] / 1e9);
    }

    /** One uploaded tier for all rows that read, opened again (its index was uploaded at the stop) with FORCE, and kept. */
    static Bench.S reading(JSONObject p) throws Exception {
        String key = p.getString("messages") + "/" + p.getString("queues") + "/" + p.getString("body");
        if (!readingKey.equals(key)) {
            if (reading != null) reading.t.shutdown();
            readingKey = "";
            uploaded(work.resolve("read"), p, new long[3]).t.shutdown();
            reading = Bench.open(work.resolve("read").toString(), true, null);
            readingKey = key;
        }
        return reading;
    }

    static MessageStoreFetcherImpl fetcher(Bench.S s) throws Exception {
        return (MessageStoreFetcherImpl) Node.field(org.apache.rocketmq.tieredstore.TieredMessageStore.class, s.t, "fetcher");
    }

    /** Goes on from pass to pass, as ours does: none asks for what the one before has brought close. */
    static Random random(JSONObject p) {
        return RANDOMS.computeIfAbsent(p.getString("row"), row -> new Random(p.getLongValue("seed")));
    }

    /** Every message is there as an object; the queue offsets of the first and the last are looked at. */
    static int checked(List<ByteBuffer> messages, long off) {
        int n = 0;
        for (ByteBuffer b : messages) if (b.remaining() > 0) n++;
        ByteBuffer first = messages.get(0), last = messages.get(messages.size() - 1);
        if (n != messages.size() || first.getLong(first.position() + 20) != off || last.getLong(last.position() + 20) != off + n - 1) throw new IllegalStateException("wrong messages at " + off);
        return n;
    }

    /** The fetcher's own read of a block from the tier (no cache): pull messages a call, at most. */
    static JSONObject readBlock(JSONObject p) throws Exception {
        Bench.S s = reading(p);
        int pull = p.getIntValue("pull"), n = 0;
        MessageStoreFetcherImpl fetcher = fetcher(s);
        long t0 = System.nanoTime();
        for (int q = 0; q < p.getIntValue("queues"); q++) {
            FlatMessageFile file = s.t.getFlatFileStore().getFlatFile(new MessageQueue(Bench.TOPIC, s.t.getBrokerName(), q));
            for (long off = 0, max = file.getConsumeQueueCommitOffset(); off < max; ) {
                GetMessageResultExt g = fetcher.getMessageFromTieredStoreAsync(file, off, pull).join();
                if (g.getStatus() != GetMessageStatus.FOUND) throw new IllegalStateException(g.getStatus() + " at " + off);
                n += checked(g.getMessageBufferList(), off);
                off += g.getMessageBufferList().size();
            }
        }
        return took(n, System.nanoTime() - t0);
    }

    static GetMessageResult get(Bench.S s, MessageStoreFetcherImpl fetcher, boolean store, String group, int q, long off, int pull) {
        return store ? s.t.getMessageAsync(group, Bench.TOPIC, q, off, pull, null).join() : fetcher.getMessageAsync(group, Bench.TOPIC, q, off, pull, null).join();
    }

    static JSONObject readSequential(JSONObject p, boolean store) throws Exception {
        Bench.S s = reading(p);
        int pull = p.getIntValue("pull"), n = 0;
        MessageStoreFetcherImpl fetcher = fetcher(s);
        fetcher.getFetcherCache().invalidateAll();
        long t0 = System.nanoTime();
        for (int q = 0; q < p.getIntValue("queues"); q++)
            for (long off = 0, max = s.d.getMaxOffsetInQueue(Bench.TOPIC, q); off < max; ) {
                GetMessageResult g = get(s, fetcher, store, "GID_b" + q, q, off, pull);
                if (g.getStatus() != GetMessageStatus.FOUND) throw new IllegalStateException(g.getStatus() + " at " + off);
                n += checked(g.getMessageBufferList(), off);
                off += g.getMessageBufferList().size();
                g.release();
            }
        return took(n, System.nanoTime() - t0);
    }

    /** reads, each with an empty read-ahead cache; the cache is emptied outside the clock */
    static JSONObject readRandom(JSONObject p) throws Exception {
        Bench.S s = reading(p);
        MessageStoreFetcherImpl fetcher = fetcher(s);
        int reads = p.getIntValue("reads"), queues = p.getIntValue("queues");
        Random random = random(p);
        long[] ns = new long[reads];
        long sum = 0;
        for (int i = 0; i < reads; i++) {
            int q = random.nextInt(queues);
            long off = random.nextInt((int) s.d.getMaxOffsetInQueue(Bench.TOPIC, q));
            fetcher.getFetcherCache().invalidateAll();
            long t = System.nanoTime();
            GetMessageResult g = get(s, fetcher, p.getBooleanValue("store"), "GID_r", q, off, 1);
            sum += ns[i] = System.nanoTime() - t;
            if (g.getMessageCount() != 1 || g.getMessageBufferList().get(0).getLong(g.getMessageBufferList().get(0).position() + 20) != off) throw new IllegalStateException(g.getStatus() + " at " + off);
            g.release();
        }
        Arrays.sort(ns);
        return took(reads, sum, "p50_us", ns[reads / 2] / 1e3, "p99_us", ns[reads * 99 / 100] / 1e3);
    }

    /** One message by one of its keys, asked of the tier alone; its index is as the upload left it. A key that a stop lost, whose index was not built yet, is not counted. */
    static JSONObject queryKey(JSONObject p) throws Exception {
        Bench.S s = reading(p);
        MessageStoreFetcherImpl fetcher = fetcher(s);
        int n = p.getIntValue("lookups"), messages = p.getIntValue("messages"), missing = 0;
        Random random = random(p);
        long[] ns = new long[n];
        long sum = 0;
        for (int i = 0; i < n; ) {
            String key = "key-" + random.nextInt(messages);
            long t = System.nanoTime();
            QueryMessageResult found = fetcher.queryMessageAsync(Bench.TOPIC, key, 32, 0, Long.MAX_VALUE).join();
            long took = System.nanoTime() - t;
            if (!found.getMessageBufferList().isEmpty()) {
                checkKey(found.getMessageBufferList(), key);
                sum += ns[i++] = took;
            } else if (++missing > n / 10) throw new IllegalStateException("no message of " + missing + " keys");
            found.release();
        }
        Arrays.sort(ns);
        return took(n, sum, "p50_us", ns[n / 2] / 1e3, "p99_us", ns[n * 99 / 100] / 1e3);
    }

    /** The message is among those found. Java holds none of them against the key: one of the same hash comes with it. */
    static void checkKey(List<ByteBuffer> found, String key) {
        for (ByteBuffer b : found) if (key.equals(MessageDecoder.decode(b.duplicate()).getKeys())) return;
        throw new IllegalStateException("other messages for " + key);
    }

    static JSONObject offsetByTime(JSONObject p) throws Exception {
        Bench.S s = reading(p);
        MessageStoreFetcherImpl fetcher = fetcher(s);
        int n = p.getIntValue("lookups"), queues = p.getIntValue("queues");
        long[] first = new long[queues], last = new long[queues];
        for (int q = 0; q < queues; q++) {
            first[q] = s.d.getMessageStoreTimeStamp(Bench.TOPIC, q, 0);
            last[q] = s.d.getMessageStoreTimeStamp(Bench.TOPIC, q, s.d.getMaxOffsetInQueue(Bench.TOPIC, q) - 1);
        }
        Random random = random(p);
        long[] ns = new long[n];
        long sum = 0;
        for (int i = 0; i < n; i++) {
            int q = random.nextInt(queues);
            long time = first[q] + (long) (random.nextDouble() * (last[q] - first[q] + 1));
            long t = System.nanoTime();
            long off = fetcher.getOffsetInQueueByTime(Bench.TOPIC, q, time, BoundaryType.LOWER);
            sum += ns[i] = System.nanoTime() - t;
            if (off < 0) throw new IllegalStateException("no offset for " + time);
        }
        Arrays.sort(ns);
        return took(n, sum, "p50_us", ns[n / 2] / 1e3, "p99_us", ns[n * 99 / 100] / 1e3);
    }

    static org.apache.rocketmq.tieredstore.MessageStoreConfig indexConfig(Path dir, int items, int slots) {
        org.apache.rocketmq.tieredstore.MessageStoreConfig c = new org.apache.rocketmq.tieredstore.MessageStoreConfig();
        c.setStorePathRootDir(dir + "/store");
        c.setTieredStoreFilePath(dir + "/tiered");
        c.setBrokerName("labBroker");
        c.setBrokerClusterName("LabCluster");
        c.setTieredBackendServiceProvider("org.apache.rocketmq.tieredstore.provider.PosixFileSegment");
        c.setTieredStoreIndexFileMaxHashSlotNum(slots);
        c.setTieredStoreIndexFileMaxIndexNum(items + 2);
        c.setTieredStoreFileReservedTime(876000);
        return c;
    }

    /** Key i of an index row: 16 hex digits without any order, so that neighbours share no slot. */
    static String key(int i) {
        long x = i * 0x9E3779B97F4A7C15L;
        x ^= x >>> 29;
        char[] c = new char[16];
        for (int k = 15; k >= 0; k--, x >>>= 4) c[k] = "0123456789abcdef".charAt((int) (x & 15));
        return new String(c);
    }

    /** items keys, one a call (there is no other), into one new index file */
    static JSONObject indexPut(JSONObject p) throws Exception {
        int items = p.getIntValue("items");
        Path dir = work.resolve("index-put");
        Bench.rm(dir);
        IndexStoreFile f = new IndexStoreFile(indexConfig(dir, items, p.getIntValue("slots")), System.currentTimeMillis());
        try {
            return took(items, fill(f, items));
        } finally {
            f.destroy();
            Bench.rm(dir);
        }
    }

    static long fill(IndexStoreFile f, int items) {
        String[] keys = new String[1 << 20];
        long base = f.getTimestamp(), ns = 0;
        for (int i = 0; i < items; ) {
            int n = Math.min(keys.length, items - i);
            for (int k = 0; k < n; k++) keys[k] = key(i + k); // made outside the clock
            long t0 = System.nanoTime();
            for (int k = 0; k < n; k++, i++) f.putKey(Bench.TOPIC, 1, i % 4, Collections.singleton(keys[k]), i * 1000L, 1000, base + i / 1000);
            ns += System.nanoTime() - t0;
        }
        if (f.getIndexItemCount() != items) throw new IllegalStateException("items " + f.getIndexItemCount());
        return ns;
    }

    /** One full unsealed file, made once; each pass compacts and uploads a copy of it, forced to the disk as the provider does. */
    static JSONObject indexCompact(JSONObject p) throws Exception {
        int items = p.getIntValue("items"), slots = p.getIntValue("slots");
        String key = items + "/" + slots;
        Path made = work.resolve("index-made"), dir = work.resolve("index-compact");
        if (!filledKey.equals(key)) {
            Bench.rm(made);
            IndexStoreFile f = new IndexStoreFile(indexConfig(made, items, slots), System.currentTimeMillis());
            fill(f, items);
            f.shutdown();
            filledKey = key;
        }
        Bench.rm(dir);
        Path source = made.resolve("store").resolve(IndexStoreService.FILE_DIRECTORY_NAME), target = dir.resolve("store").resolve(IndexStoreService.FILE_DIRECTORY_NAME);
        Files.createDirectories(target);
        try (DirectoryStream<Path> files = Files.newDirectoryStream(source)) { for (Path f : files) if (Files.isRegularFile(f)) Files.copy(f, target.resolve(f.getFileName())); }
        org.apache.rocketmq.tieredstore.MessageStoreConfig config = indexConfig(dir, items, slots);
        FlatFileFactory factory = new FlatFileFactory(new DefaultMetadataStore(config), config);
        IndexStoreService service = new IndexStoreService(factory, org.apache.rocketmq.tieredstore.util.MessageStoreUtil.getIndexFilePath("labBroker"), false);
        Method recover = IndexStoreService.class.getDeclaredMethod("recover");
        recover.setAccessible(true);
        recover.invoke(service);
        IndexFile file = service.getTimeStoreTable().lastEntry().getValue();
        if (((IndexStoreFile) file).getIndexItemCount() != items) throw new IllegalStateException("items " + ((IndexStoreFile) file).getIndexItemCount());
        long t0 = System.nanoTime();
        boolean ok = service.doCompactThenUploadFile(file);
        long ns = System.nanoTime() - t0;
        if (!ok) throw new IllegalStateException("compaction failed");
        long bytes = 0;
        try (java.util.stream.Stream<Path> all = Files.walk(dir.resolve("tiered"))) { for (Path f : (Iterable<Path>) all::iterator) if (Files.isRegularFile(f)) bytes += Files.size(f); }
        service.forceShutdown();
        Bench.rm(dir);
        return took(items, ns, "bytes", bytes);
    }

    /** open of a store with that many queues, ten messages each, without a tier if `local`: load and start of everything, then the flat files' load again alone */
    static JSONObject open(JSONObject p) throws Exception {
        int queues = p.getIntValue("queues"), per = 10;
        boolean local = p.getBooleanValue("local");
        Path dir = work.resolve(local ? "open-local" : "open");
        Map<String, String> files = new HashMap<>(SMALL_FILES);
        if (!openKey.equals(dir.getFileName() + " " + queues)) {
            Bench.rm(dir);
            Bench.S s = Bench.open(dir.toString(), false, files);
            byte[] body = body(p.getIntValue("body"));
            for (int k = 0; k < per; k++) for (int q = 0; q < queues; q++) s.d.putMessage(Bench.msg("openTopic" + q % 100, q / 100, body, q));
            waitDispatched(s.d);
            s.d.shutdown();
            openKey = dir.getFileName() + " " + queues;
            if (local) return open(p);
            s = Bench.open(dir.toString(), true, files);
            MessageStoreDispatcherImpl dispatcher = (MessageStoreDispatcherImpl) Node.field(org.apache.rocketmq.tieredstore.TieredMessageStore.class, s.t, "dispatcher");
            List<FlatMessageFile> all = new ArrayList<>();
            for (int q = 0; q < queues; q++) {
                FlatMessageFile f = s.t.getFlatFileStore().computeIfAbsent(new MessageQueue("openTopic" + q % 100, s.t.getBrokerName(), q / 100));
                f.initOffset(0);
                all.add(f);
            }
            for (long since = System.nanoTime(); ; ) {
                dispatcher.wakeup();
                TimeUnit.MILLISECONDS.sleep(20);
                boolean done = true;
                for (FlatMessageFile f : all) done &= f.getConsumeQueueCommitOffset() >= per;
                if (done) break;
                if (System.nanoTime() - since > 300e9) throw new IllegalStateException("upload takes more than 300 s");
            }
            s.t.shutdown();
        }
        long t0 = System.nanoTime();
        Bench.S s = Bench.open(dir.toString(), !local, files);
        long t1 = System.nanoTime();
        if (local) { s.d.shutdown(); return took(queues, t1 - t0); }
        s.t.getFlatFileStore().load();
        long t2 = System.nanoTime();
        s.t.shutdown();
        return took(queues, t1 - t0, "seconds_flat_files", (t2 - t1) / 1e9);
    }
}
