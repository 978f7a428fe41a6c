// A real client of Redis against Guanxi: ioredis.

const assert = require("node:assert/strict");
const { Redis } = require("ioredis");

const [host, port] = process.argv[2].split(":");
const source = Number(process.argv[3]);

const talk = async (client) => {
  assert.equal(await client.ping(), "PONG");
  await client.call("GX.PUT", "follow", source, source + 1);
  const related = await client.call("GX.CHECK", "follow", source, source + 1, source + 2);
  assert.deepEqual(related, [1, 0]);
  // Without a pipeline of its own: it sends what is asked in one turn together.
  const puts = [];
  for (let target = 0; target < 100; target++) {
    puts.push(client.call("GX.PUT", "like", source, 1_000_000 + target));
  }
  const hydrated = client.call(
    "GX.HYDRATE", source, "KINDS", 2, "like", "follow",
    "OBJECTS", 2, `1000099:${source + 1}`, 2_000_000,
  );
  for (const put of await Promise.all(puts)) {
    assert.ok(JSON.stringify(put).includes("live"), put);
  }
  assert.deepEqual(await hydrated, [[["like", "follow"], [], []], [[], [], []]]);
  const wrong = client.call("GX.PUT", "nothing", 1, 2);
  await assert.rejects(wrong, /^ReplyError: UNKNOWN_KIND /);
  assert.equal(await client.client("GETNAME"), "test");
  await client.quit();
};

talk(new Redis({ host, port: Number(port), connectionName: "test" })).then(
  () => console.log("done"),
  (error) => {
    console.error(error);
    process.exit(1);
  },
);
