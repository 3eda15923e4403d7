// Load for a remoting broker: sends, batches or pulls, many in flight on a few connections. Frames are
// made once and only their opaque differs, so that the broker is the limit. What is pulled is checked for
// gaps and repeats. One line of JSON at the end.
package main

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"measured"
)

var (
	address  = flag.String("address", "127.0.0.1:10911", "ip:port of the broker")
	mode     = flag.String("mode", "send", "send, batch or pull")
	conns    = flag.Int("connections", 4, "connections")
	inFlight = flag.Int("in-flight", 64, "requests in flight on each")
	size     = flag.Int("size", 1024, "bytes of a body")
	batch    = flag.Int("batch", 32, "messages of a batch, and at most of a pull")
	topic    = flag.String("topic", "load", "topic")
	queues   = flag.Int("queues", 4, "queues of the topic")
	seconds  = flag.Float64("seconds", 5, "how long")
	most     = flag.Int64("messages", 0, "end after so many, 0: after the seconds")
	once     = flag.Bool("once", false, "pull: read each queue once, then end")
	commit   = flag.Bool("commit", false, "pull: commit offset 0 of the group with each pull")
	rate     = flag.Float64("rate", 0, "send: requests a second, 0: as many as are answered")
	behind   = flag.String("read", "", "a topic that one more connection a queue reads from the beginning meanwhile")
)

const slots = 1 << 16 // of opaque numbers

type client struct {
	conn     net.Conn
	topic    string
	free     chan struct{}
	sent     [slots]int64 // nanoseconds
	latency  []int64
	messages int64
	busy     int64
	failed   string
}

var total atomic.Int64
var stopping atomic.Bool

func frame(header string, body []byte) []byte {
	out := make([]byte, 0, 8+len(header)+len(body))
	out = binary.BigEndian.AppendUint32(out, uint32(4+len(header)+len(body)))
	out = binary.BigEndian.AppendUint32(out, uint32(len(header)))
	return append(append(out, header...), body...)
}

func header(code int, opaque int, fields map[string]string) string {
	text, _ := json.Marshal(fields)
	// the opaque has five digits always, so that it can be replaced
	return fmt.Sprintf(`{"code":%d,"flag":0,"language":"JAVA","opaque":1%05d,"serializeTypeCurrentRPC":"JSON","version":513,"extFields":%s}`, code, opaque, text)
}

func sendFields(queue int, isBatch bool) map[string]string {
	properties := "UNIQ_KEY\x017F0000010001AABBCCDD0000000000AB\x02WAIT\x01true\x02TAGS\x01TagA\x02"
	if isBatch {
		properties = "WAIT\x01true\x02"
	}
	return map[string]string{
		"a": "load", "b": *topic, "c": "TBW102", "d": strconv.Itoa(*queues), "e": strconv.Itoa(queue), "f": "0",
		"g": strconv.FormatInt(time.Now().UnixMilli(), 10), "h": "0", "i": properties, "j": "0", "k": "false",
		"m": strconv.FormatBool(isBatch), "n": "broker-a",
	}
}

func batchBody(body []byte) []byte {
	properties := "UNIQ_KEY\x017F0000010001AABBCCDD0000000000AB\x02WAIT\x01true\x02TAGS\x01TagA\x02"
	var out []byte
	for i := 0; i < *batch; i++ {
		out = binary.BigEndian.AppendUint32(out, uint32(4*5+len(body)+2+len(properties)))
		out = append(out, make([]byte, 12)...)
		out = binary.BigEndian.AppendUint32(out, uint32(len(body)))
		out = append(out, body...)
		out = binary.BigEndian.AppendUint16(out, uint16(len(properties)))
		out = append(out, properties...)
	}
	return out
}

// produce writes requests while there is room, several at once.
func (c *client) produce(number int) {
	body := bytes.Repeat([]byte("x"), *size)
	code, isBatch := 310, *mode == "batch"
	if isBatch {
		code, body = 320, batchBody(body)
	}
	var frames [][]byte
	var places []int
	for queue := 0; queue < *queues; queue++ {
		made := frame(header(code, 0, sendFields(queue, isBatch)), body)
		frames = append(frames, made)
		places = append(places, bytes.Index(made, []byte(`"opaque":1`))+len(`"opaque":1`))
	}
	writer := bufio.NewWriterSize(c.conn, 256<<10)
	pause := time.Duration(0)
	if *rate > 0 {
		pause = time.Duration(float64(*conns) / *rate * float64(time.Second))
	}
	due := time.Now()
	for opaque := 0; !stopping.Load(); opaque = (opaque + 1) % slots {
		if pause > 0 { // late ones are made up for
			writer.Flush()
			due = due.Add(pause)
			time.Sleep(time.Until(due))
		}
		select {
		case c.free <- struct{}{}:
		default:
			writer.Flush()
			c.free <- struct{}{}
		}
		queue := (opaque + number) % *queues
		copy(frames[queue][places[queue]:], fmt.Sprintf("%05d", opaque))
		c.sent[opaque] = time.Now().UnixNano()
		writer.Write(frames[queue])
	}
	writer.Flush()
}

func (c *client) read(reader *bufio.Reader) (head []byte, body []byte, err error) {
	var start [8]byte
	if _, err = io.ReadFull(reader, start[:]); err != nil {
		return
	}
	rest := make([]byte, binary.BigEndian.Uint32(start[:])-4)
	if _, err = io.ReadFull(reader, rest); err != nil {
		return
	}
	length := binary.BigEndian.Uint32(start[4:]) & 0xffffff
	return rest[:length], rest[length:], nil
}

func number(head []byte, name string) int64 {
	at := bytes.Index(head, []byte(`"`+name+`":`))
	if at < 0 {
		return -1
	}
	text := strings.TrimLeft(string(head[at+len(name)+3:min(len(head), at+len(name)+30)]), `"`)
	end := strings.IndexFunc(text, func(r rune) bool { return (r < '0' || r > '9') && r != '-' })
	found, _ := strconv.ParseInt(text[:end], 10, 64)
	return found
}

func (c *client) count(messages int64) {
	c.messages += messages
	if *most > 0 && total.Add(messages) >= *most {
		stopping.Store(true)
	}
}

func (c *client) confirm() {
	each := int64(1)
	if *mode == "batch" {
		each = int64(*batch)
	}
	reader := bufio.NewReaderSize(c.conn, 256<<10)
	for {
		head, _, err := c.read(reader)
		if err != nil {
			return
		}
		switch number(head, "code") {
		case 0:
			c.count(each)
		case 2: // the broker asks for less
			c.busy++
		default:
			c.fail(string(head))
		}
		c.latency = append(c.latency, time.Now().UnixNano()-c.sent[number(head, "opaque")-100000])
		<-c.free
	}
}

// pull reads queues from their beginning to their end, one after the other, and again.
func (c *client) pull(first int) {
	reader := bufio.NewReaderSize(c.conn, 1<<20)
	queue, offset := first%*queues, int64(0)
	sysFlag := "4" // it brings its subscription
	if *commit {
		sysFlag = "5"
	}
	for !stopping.Load() {
		begin := time.Now().UnixNano()
		c.conn.Write(frame(header(11, 0, map[string]string{
			"consumerGroup": "load-pull", "topic": c.topic, "queueId": strconv.Itoa(queue),
			"queueOffset": strconv.FormatInt(offset, 10), "maxMsgNums": strconv.Itoa(*batch), "sysFlag": sysFlag,
			"commitOffset": "0", "suspendTimeoutMillis": "0", "subscription": "*", "subVersion": "0",
			"expressionType": "TAG", "maxMsgBytes": "1048576",
		}), nil))
		head, body, err := c.read(reader)
		if err != nil {
			return
		}
		code := number(head, "code")
		if code != 0 && code != 19 && code != 20 && code != 21 {
			c.fail(string(head))
			return
		}
		c.latency = append(c.latency, time.Now().UnixNano()-begin)
		found := int64(0)
		for at := 0; at < len(body); found++ {
			if stored := int64(binary.BigEndian.Uint64(body[at+20:])); stored != offset+found {
				c.fail(fmt.Sprintf("%s, queue %d: expected offset %d, found %d", c.topic, queue, offset+found, stored))
				return
			}
			at += int(binary.BigEndian.Uint32(body[at:]))
		}
		c.count(found)
		offset = number(head, "nextBeginOffset")
		if offset >= number(head, "maxOffset") {
			if *once {
				return
			}
			queue, offset = (queue+*conns)%*queues, 0
			if *conns >= *queues {
				queue = first % *queues
			}
		}
	}
}

func (c *client) fail(why string) {
	c.failed = why
	stopping.Store(true)
}

func connect(topic string) *client {
	conn, err := net.Dial("tcp", *address)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	return &client{conn: conn, topic: topic, free: make(chan struct{}, *inFlight)}
}

func main() {
	flag.Parse()
	clients := make([]*client, *conns)
	var readers []*client
	var reading, writing sync.WaitGroup
	begin := time.Now()
	for i := range clients {
		c := connect(*topic)
		clients[i] = c
		writing.Add(1)
		if *mode == "pull" {
			go func() { defer writing.Done(); c.pull(i) }()
			continue
		}
		reading.Add(1)
		go func() { defer reading.Done(); c.confirm() }()
		go func() { defer writing.Done(); c.produce(i) }()
	}
	for i := 0; *behind != "" && i < *queues; i++ {
		c := connect(*behind)
		readers = append(readers, c)
		writing.Add(1)
		go func() { defer writing.Done(); c.pull(i) }()
	}
	if *once {
		writing.Wait()
		stopping.Store(true)
	}
	measured.StopAfter(*seconds, begin, &stopping)
	for _, c := range append(clients, readers...) {
		c.conn.SetDeadline(time.Now().Add(5 * time.Second))
	}
	took := time.Since(begin).Seconds()
	for _, c := range clients { // those that wait for room get it from the responses
		for i := 0; i < 1000 && len(c.free) > 0; i++ {
			time.Sleep(2 * time.Millisecond)
		}
		c.conn.Close()
	}
	reading.Wait()
	writing.Wait()
	var latency []int64
	messages, busy, read, failed := int64(0), int64(0), int64(0), ""
	for _, c := range readers {
		read += c.messages
		if c.failed != "" {
			failed = c.failed
		}
	}
	for _, c := range clients {
		latency = append(latency, c.latency...)
		messages += c.messages
		busy += c.busy
		if c.failed != "" {
			failed = c.failed
		}
	}
	measured.Report(latency, map[string]any{
		"messages": messages, "seconds": took, "failed": failed, "busy": busy, "read": read,
	})
}
