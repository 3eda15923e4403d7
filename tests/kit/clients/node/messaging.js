// Producers and consumers of Apache's Node client, by name: the verbs that all languages have.
const { serve } = require("./talk");
const { Producer, PushConsumer, LitePushConsumerImpl, SimpleConsumer, ConsumeResult, FilterExpression } = require("rocketmq-client-nodejs");

const COMMIT = 1;
const clients = new Map();
const held = new Map();
const collected = new Map();
const checked = [];
const quiet = { info() {}, debug() {}, warn: console.error, error: console.error };

const signing = ([accessKey, accessSecret] = []) => (accessKey ? { sessionCredentials: { accessKey, accessSecret } } : {});
const options = (request) => ({ endpoints: request.grpc, namespace: "", logger: quiet, ...signing(request.credentials) });
const subscriptions = (request) => new Map([[request.topic, new FilterExpression(request.expression ?? "*")]]);

function message(request) {
  return {
    topic: request.topic,
    body: Buffer.from(request.body.repeat(request.times ?? 1)),
    tag: request.tag,
    keys: request.keys ?? [],
    properties: new Map(Object.entries(request.properties ?? {})),
    messageGroup: request.message_group,
    liteTopic: request.lite_topic,
    delay: request.delay_ms,
  };
}

function describe(view) {
  return {
    topic: view.topic,
    body: view.body.toString(),
    tag: view.tag,
    keys: view.keys,
    properties: Object.fromEntries(view.properties),
    message_id: view.messageId,
    message_group: view.messageGroup,
    lite_topic: view.liteTopic,
    attempt: view.deliveryAttempt,
    queue_id: -1,
    queue_offset: 0,
    at_ms: Date.now(),
  };
}

function take(key, view, failed) {
  if (!collected.has(key)) collected.set(key, []);
  collected.get(key).push(describe(view));
  return failed ? ConsumeResult.FAILURE : ConsumeResult.SUCCESS;
}

async function start(request, client) {
  await client.startup();
  clients.set(request.name, client);
}

serve({
  start_producer: async (request) => {
    const checker = { check: async (view) => (checked.push(view.body.toString()), COMMIT) };
    const own = request.transactional ? { checker } : {};
    await start(request, new Producer({ ...options(request), topics: request.topics, ...own }));
  },
  send: async (request) => {
    const receipt = await clients.get(request.name).send(message(request));
    return { message_id: receipt.messageId, recall_handle: receipt.recallHandle, at_ms: Date.now() };
  },
  recall: async (request) => {
    await clients.get(request.name).recallMessage(request.topic, request.recall_handle);
  },
  send_in_transaction: async (request) => {
    const producer = clients.get(request.name);
    const transaction = producer.beginTransaction();
    const receipt = await producer.send(message(request), transaction);
    if (request.end === "commit") await transaction.commit();
    if (request.end === "rollback") await transaction.rollback();
    return receipt.messageId;
  },
  start_push: async (request) => {
    const consume = async (view) =>
      take(view.topic, view, view.deliveryAttempt <= (request.fail_times ?? 0) || view.body.toString() === request.poison);
    const own = { consumerGroup: request.group, subscriptions: subscriptions(request), messageListener: { consume } };
    await start(request, new PushConsumer({ ...options(request), ...own }));
  },
  // A consumer of lite topics. Its messages are collected by its own name, since several consume one topic.
  start_lite_push: async (request) => {
    const consume = async (view) =>
      take(request.name, view, view.body.toString() === "bad" && view.deliveryAttempt <= (request.fail_times ?? 0));
    const own = { consumerGroup: request.group, bindTopic: request.topic, messageListener: { consume } };
    await start(request, new LitePushConsumerImpl({ ...options(request), ...own }));
  },
  subscribe_lite: async (request) => {
    await clients.get(request.name).subscribeLite(request.lite_topic);
  },
  unsubscribe_lite: async (request) => {
    await clients.get(request.name).unsubscribeLite(request.lite_topic);
  },
  start_simple: async (request) => {
    const own = { consumerGroup: request.group, subscriptions: subscriptions(request) };
    const awaitDuration = (request.await_s ?? 5) * 1000;
    await start(request, new SimpleConsumer({ ...options(request), ...own, awaitDuration }));
  },
  receive: async (request) => {
    const found = await clients.get(request.name).receive(request.count ?? 32, (request.invisible_s ?? 30) * 1000);
    for (const view of found) held.set(view.messageId, view);
    return found.map(describe);
  },
  ack: async (request) => {
    await clients.get(request.name).ack(held.get(request.message_id));
  },
  change_invisible: async (request) => {
    await clients.get(request.name).changeInvisibleDuration(held.get(request.message_id), request.seconds * 1000);
  },
  collected: async (request) => collected.get(request.topic) ?? [],
  checked: async () => checked,
  stop: async (request) => {
    const client = clients.get(request.name);
    clients.delete(request.name);
    await client.shutdown();
  },
});
