// Load for the gRPC port of a broker or of RocketMQ's proxy: sends, or receives with their
// acknowledgements. It speaks through the published stubs, without a client's threads and queues, so that
// the server is the limit. One line of JSON at the end.
package main

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"measured"

	v2 "github.com/apache/rocketmq-clients/golang/v5/protocol/v2"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"
)

var (
	address  = flag.String("address", "127.0.0.1:8081", "ip:port of the gRPC server")
	mode     = flag.String("mode", "send", "send or receive")
	conns    = flag.Int("connections", 4, "connections")
	inFlight = flag.Int("in-flight", 16, "calls in flight on each")
	size     = flag.Int("size", 1024, "bytes of a body")
	batch    = flag.Int("batch", 1, "messages of a send, and at most of a receive")
	topic    = flag.String("topic", "load", "topic")
	bare     = flag.Bool("bare", false, "make no calls but those of the mode: for servers that know no other")
	seconds  = flag.Float64("seconds", 5, "how long")
)

const group = "load-pull" // the remoting load makes it

var stopping atomic.Bool
var made atomic.Int64

// worker makes one call after the other.
type worker struct {
	client   v2.MessagingServiceClient
	ctx      context.Context
	latency  []int64
	messages int64
	failed   string
}

func name(text string) *v2.Resource { return &v2.Resource{Name: text} }

func newContext(ctx context.Context, number int) context.Context {
	return metadata.AppendToOutgoingContext(ctx,
		"x-mq-client-id", fmt.Sprintf("load-%d", number), "x-mq-language", "GO", "x-mq-protocol", "v2",
		"x-mq-client-version", "5.1.2", "x-mq-date-time", time.Now().UTC().Format("20060102T150405Z"),
		"x-mq-request-id", "load", "x-mq-namespace", "")
}

func (w *worker) fail(what string) {
	w.failed = what
	stopping.Store(true)
}

func (w *worker) send(body []byte) {
	host, kind, encoding, tag := "127.0.0.1", v2.MessageType_NORMAL, v2.Encoding_IDENTITY, "TagA"
	request := &v2.SendMessageRequest{}
	for i := 0; i < *batch; i++ {
		request.Messages = append(request.Messages, &v2.Message{Topic: name(*topic), Body: body,
			SystemProperties: &v2.SystemProperties{Tag: &tag, BornHost: host, BornTimestamp: timestamppb.Now(),
				MessageType: kind, BodyEncoding: encoding}})
	}
	for !stopping.Load() {
		for _, message := range request.Messages {
			message.SystemProperties.MessageId = fmt.Sprintf("01000000000000000000000000%08X", made.Add(1))
		}
		begin := time.Now()
		response, err := w.client.SendMessage(w.ctx, request)
		if err != nil {
			w.fail(err.Error())
		} else if response.Status.Code != v2.Code_OK {
			w.fail(response.Status.String())
		} else {
			w.latency = append(w.latency, time.Since(begin).Nanoseconds())
			w.messages += int64(*batch)
		}
	}
}

// receive takes messages of all queues and acknowledges each answer's in one call.
func (w *worker) receive() {
	request := &v2.ReceiveMessageRequest{
		Group:            name(group),
		MessageQueue:     &v2.MessageQueue{Topic: name(*topic), Id: -1, Permission: v2.Permission_READ, Broker: &v2.Broker{Name: "broker-a"}},
		FilterExpression: &v2.FilterExpression{Type: v2.FilterType_TAG, Expression: "*"},
		BatchSize:        int32(*batch), InvisibleDuration: durationpb.New(time.Minute),
	}
	for !stopping.Load() {
		begin := time.Now()
		ctx, cancel := context.WithTimeout(w.ctx, 10*time.Second)
		messages, status, err := w.take(ctx, request)
		cancel()
		if stopping.Load() {
			return
		}
		if err != nil {
			w.fail(err.Error())
			return
		}
		if len(messages) == 0 {
			if status != nil && status.Code != v2.Code_MESSAGE_NOT_FOUND && status.Code != v2.Code_OK {
				w.fail(status.String())
			}
			continue
		}
		acknowledge := &v2.AckMessageRequest{Group: name(group), Topic: name(*topic)}
		for _, message := range messages {
			acknowledge.Entries = append(acknowledge.Entries, &v2.AckMessageEntry{
				MessageId: message.SystemProperties.MessageId, ReceiptHandle: *message.SystemProperties.ReceiptHandle})
		}
		response, err := w.client.AckMessage(w.ctx, acknowledge)
		if stopping.Load() {
			return
		}
		if err != nil {
			w.fail(err.Error())
			return
		}
		if response.Status.Code != v2.Code_OK {
			w.fail(response.Status.String())
			return
		}
		w.latency = append(w.latency, time.Since(begin).Nanoseconds())
		w.messages += int64(len(messages))
	}
}

func (w *worker) take(ctx context.Context, request *v2.ReceiveMessageRequest) (messages []*v2.Message, status *v2.Status, err error) {
	stream, err := w.client.ReceiveMessage(ctx, request)
	if err != nil {
		return
	}
	for {
		response, problem := stream.Recv()
		if problem == io.EOF {
			return
		}
		if problem != nil {
			return nil, nil, problem
		}
		if found := response.GetMessage(); found != nil {
			messages = append(messages, found)
		} else if found := response.GetStatus(); found != nil {
			status = found
		}
	}
}

// tellSettings says what the client is; servers need it before the first receive.
func tellSettings(ctx context.Context, client v2.MessagingServiceClient) error {
	stream, err := client.Telemetry(ctx)
	if err != nil {
		return err
	}
	kind := v2.ClientType_SIMPLE_CONSUMER
	settings := &v2.Settings{ClientType: &kind, RequestTimeout: durationpb.New(3 * time.Second),
		UserAgent: &v2.UA{Language: v2.Language_GOLANG, Version: "5.1.2"},
		PubSub: &v2.Settings_Subscription{Subscription: &v2.Subscription{Group: name(group),
			LongPollingTimeout: durationpb.New(2 * time.Second),
			Subscriptions: []*v2.SubscriptionEntry{{Topic: name(*topic),
				Expression: &v2.FilterExpression{Type: v2.FilterType_TAG, Expression: "*"}}}}}}
	if *mode == "send" {
		*settings.ClientType = v2.ClientType_PRODUCER
		settings.PubSub = &v2.Settings_Publishing{Publishing: &v2.Publishing{Topics: []*v2.Resource{name(*topic)}}}
	}
	err = stream.Send(&v2.TelemetryCommand{Command: &v2.TelemetryCommand_Settings{Settings: settings}})
	if err == nil {
		_, err = stream.Recv()
	}
	go func() { // the stream stays, and what the server says is taken
		for {
			if _, err := stream.Recv(); err != nil {
				return
			}
		}
	}()
	return err
}

func main() {
	flag.Parse()
	ctx, cancel := context.WithCancel(context.Background())
	var workers []*worker
	body := bytes.Repeat([]byte("x"), *size)
	for number := 0; number < *conns; number++ {
		conn, err := grpc.Dial(*address, grpc.WithTransportCredentials(insecure.NewCredentials()))
		if err == nil {
			client, named := v2.NewMessagingServiceClient(conn), newContext(ctx, number)
			if !*bare {
				err = tellSettings(named, client)
			}
			for i := 0; i < *inFlight; i++ {
				workers = append(workers, &worker{client: client, ctx: named})
			}
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
	var working sync.WaitGroup
	begin := time.Now()
	for _, w := range workers {
		working.Add(1)
		go func(w *worker) {
			defer working.Done()
			if *mode == "send" {
				w.send(body)
			} else {
				w.receive()
			}
		}(w)
	}
	measured.StopAfter(*seconds, begin, &stopping)
	took := time.Since(begin).Seconds()
	if *mode == "receive" {
		cancel() // polls that wait
	}
	working.Wait()
	cancel()
	var latency []int64
	messages, failed := int64(0), ""
	for _, w := range workers {
		latency = append(latency, w.latency...)
		messages += w.messages
		if w.failed != "" {
			failed = w.failed
		}
	}
	measured.Report(latency, map[string]any{
		"messages": messages, "seconds": took, "failed": failed,
	})
}
