// Apache's Node client as a program; its verbs.
const { serve } = require("./talk");

const client = "rocketmq-client-nodejs";
require(client);

serve({
  version: async () => require(`${client}/package.json`).version,
});
