// Producers and consumers of Apache's Go client, by name: the verbs that all languages have.
package main

import (
	"context"
	"crypto/tls"
	"errors"
	"strings"
	"sync"
	"time"

	rmq "github.com/apache/rocketmq-clients/golang/v5"
	"github.com/apache/rocketmq-clients/golang/v5/credentials"
)

var (
	producers = map[string]rmq.Producer{}
	consumers = map[string]rmq.SimpleConsumer{}
	held      = map[string]*rmq.MessageView{}
	lock      sync.Mutex
	checked   = []string{}
)

// Messaging lists the verbs.
func Messaging() map[string]Verb {
	return map[string]Verb{
		"show_certificate":    showCertificate,
		"start_producer":      startProducer,
		"send":                send,
		"send_in_transaction": sendInTransaction,
		"start_simple":        startSimple,
		"receive":             receive,
		"ack": func(r Request) (any, error) {
			return nil, consumers[r.text("name")].Ack(context.Background(), held[r.text("message_id")])
		},
		"change_invisible": func(r Request) (any, error) {
			view := held[r.text("message_id")]
			return nil, consumers[r.text("name")].ChangeInvisibleDuration(view, r.seconds("seconds", 1))
		},
		"checked": func(Request) (any, error) {
			lock.Lock()
			defer lock.Unlock()
			return append([]string{}, checked...), nil
		},
		"stop": stop,
	}
}

func (r Request) text(name string) string {
	found, _ := r[name].(string)
	return found
}

func (r Request) number(name string, otherwise int) int {
	if found, ok := r[name].(float64); ok {
		return int(found)
	}
	return otherwise
}

func (r Request) seconds(name string, otherwise int) time.Duration {
	return time.Duration(r.number(name, otherwise)) * time.Second
}

func (r Request) texts(name string) []string {
	found := []string{}
	given, _ := r[name].([]any)
	for _, one := range given {
		found = append(found, one.(string))
	}
	return found
}

func (r Request) config() *rmq.Config {
	signing := &credentials.SessionCredentials{}
	if given := r.texts("credentials"); len(given) == 2 {
		signing.AccessKey, signing.AccessSecret = given[0], given[1]
	}
	return &rmq.Config{
		Endpoint:      r.text("grpc"),
		ConsumerGroup: r.text("group"),
		Credentials:   signing,
	}
}

// showCertificate lets later connections show a certificate, by the variable that the client has
// for that.
func showCertificate(r Request) (any, error) {
	pair, err := tls.LoadX509KeyPair(r.text("certificate"), r.text("key"))
	if err != nil {
		return nil, err
	}
	options := rmq.WithRpcClientConnOption(rmq.WithTLSConfig(&tls.Config{
		Certificates:       []tls.Certificate{pair},
		InsecureSkipVerify: true,
	}))
	make := rmq.NewRpcClient
	rmq.NewRpcClient = func(target string, given ...rmq.RpcClientOption) (rmq.RpcClient, error) {
		return make(target, append(given, options)...)
	}
	return nil, nil
}

func startProducer(r Request) (any, error) {
	options := []rmq.ProducerOption{rmq.WithTopics(r.texts("topics")...)}
	if transactional, _ := r["transactional"].(bool); transactional {
		options = append(options, rmq.WithTransactionChecker(&rmq.TransactionChecker{
			Check: func(view *rmq.MessageView) rmq.TransactionResolution {
				lock.Lock()
				defer lock.Unlock()
				checked = append(checked, string(view.GetBody()))
				return rmq.COMMIT
			},
		}))
	}
	producer, err := rmq.NewProducer(r.config(), options...)
	if err != nil {
		return nil, err
	}
	producers[r.text("name")] = producer
	return nil, producer.Start()
}

func (r Request) message() *rmq.Message {
	message := &rmq.Message{
		Topic: r.text("topic"),
		Body:  []byte(strings.Repeat(r.text("body"), r.number("times", 1))),
	}
	if tag := r.text("tag"); tag != "" {
		message.SetTag(tag)
	}
	if keys := r.texts("keys"); len(keys) > 0 {
		message.SetKeys(keys...)
	}
	properties, _ := r["properties"].(map[string]any)
	for name, value := range properties {
		message.AddProperty(name, value.(string))
	}
	if group := r.text("message_group"); group != "" {
		message.SetMessageGroup(group)
	}
	if delay := r.number("delay_ms", 0); delay > 0 {
		message.SetDelayTimestamp(time.Now().Add(time.Duration(delay) * time.Millisecond))
	}
	return message
}

func send(r Request) (any, error) {
	receipts, err := producers[r.text("name")].Send(context.Background(), r.message())
	if err != nil {
		return nil, err
	}
	return map[string]any{"message_id": receipts[0].MessageID, "at_ms": time.Now().UnixMilli()}, nil
}

func sendInTransaction(r Request) (any, error) {
	producer := producers[r.text("name")]
	transaction := producer.BeginTransaction()
	receipts, err := producer.SendWithTransaction(context.Background(), r.message(), transaction)
	if err != nil {
		return nil, err
	}
	switch r.text("end") {
	case "commit":
		err = transaction.Commit()
	case "rollback":
		err = transaction.RollBack()
	}
	return receipts[0].MessageID, err
}

func startSimple(r Request) (any, error) {
	expression := rmq.SUB_ALL
	if given := r.text("expression"); given != "" {
		expression = rmq.NewFilterExpression(given)
	}
	consumer, err := rmq.NewSimpleConsumer(
		r.config(),
		rmq.WithAwaitDuration(r.seconds("await_s", 5)),
		rmq.WithSubscriptionExpressions(map[string]*rmq.FilterExpression{r.text("topic"): expression}),
	)
	if err != nil {
		return nil, err
	}
	consumers[r.text("name")] = consumer
	return nil, consumer.Start()
}

func receive(r Request) (any, error) {
	views, err := consumers[r.text("name")].Receive(
		context.Background(), int32(r.number("count", 32)), r.seconds("invisible_s", 30))
	found := []map[string]any{}
	var status *rmq.ErrRpcStatus
	if errors.As(err, &status) && status.Code == 40401 { // no message: an error in this client
		return found, nil
	}
	if err != nil {
		return nil, err
	}
	for _, view := range views {
		held[view.GetMessageId()] = view
		found = append(found, map[string]any{
			"topic":         view.GetTopic(),
			"body":          string(view.GetBody()),
			"tag":           view.GetTag(),
			"keys":          view.GetKeys(),
			"properties":    view.GetProperties(),
			"message_id":    view.GetMessageId(),
			"message_group": view.GetMessageGroup(),
			"attempt":       view.GetDeliveryAttempt(),
			"queue_id":      -1,
			"queue_offset":  0,
			"at_ms":         time.Now().UnixMilli(),
		})
	}
	return found, nil
}

func stop(r Request) (any, error) {
	name := r.text("name")
	if producer, known := producers[name]; known {
		delete(producers, name)
		return nil, producer.GracefulStop()
	}
	consumer := consumers[name]
	delete(consumers, name)
	return nil, consumer.GracefulStop()
}
