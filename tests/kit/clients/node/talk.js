// The talk of a client program with its test (tests/kit/clients/program.py).
const readline = require("readline");

// verbs: {name: async (request) => value}. Requests are answered one by one; console goes to stderr.
exports.serve = async function serve(verbs) {
  const answer = (line) => process.stdout.write(JSON.stringify(line) + "\n");
  for (const name of ["log", "info", "debug", "warn"]) console[name] = console.error;
  answer({ ok: "ready" });
  for await (const line of readline.createInterface({ input: process.stdin })) {
    const request = JSON.parse(line);
    try {
      const value = await verbs[request.verb](request);
      answer({ ok: value === undefined ? null : value });
    } catch (e) {
      console.error(e);
      answer({ error: String(e.message), type: e.constructor.name, code: typeof e.code === "number" ? e.code : null });
    }
  }
  process.exit(0); // clients leave timers behind
};
