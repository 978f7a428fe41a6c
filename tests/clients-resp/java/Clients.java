// Real clients of Redis against Guanxi: Jedis and Lettuce.

import io.lettuce.core.RedisCommandExecutionException;
import io.lettuce.core.RedisFuture;
import io.lettuce.core.api.async.RedisAsyncCommands;
import io.lettuce.core.codec.StringCodec;
import io.lettuce.core.output.ObjectOutput;
import io.lettuce.core.protocol.CommandArgs;
import io.lettuce.core.protocol.ProtocolKeyword;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import redis.clients.jedis.DefaultJedisClientConfig;
import redis.clients.jedis.HostAndPort;
import redis.clients.jedis.Pipeline;
import redis.clients.jedis.RedisClient;
import redis.clients.jedis.RedisProtocol;
import redis.clients.jedis.Response;
import redis.clients.jedis.commands.ProtocolCommand;
import redis.clients.jedis.exceptions.JedisDataException;

class Clients {
  public static void main(String[] arguments) throws Exception {
    String[] address = arguments[0].split(":");
    int port = Integer.parseInt(address[1]);
    long source = Long.parseLong(arguments[1]);
    withJedis(address[0], port, RedisProtocol.RESP2, source);
    withJedis(address[0], port, RedisProtocol.RESP3, source + 10);
    withLettuce(arguments[0], source + 20);
    System.out.println("done");
  }

  static void expect(boolean is, Object seen) {
    if (!is) {
      throw new IllegalStateException(String.valueOf(seen));
    }
  }

  static ProtocolCommand command(String name) {
    return () -> name.getBytes(StandardCharsets.UTF_8);
  }

  static void withJedis(String host, int port, RedisProtocol protocol, long source) {
    var settings = DefaultJedisClientConfig.builder().protocol(protocol).clientName("test").build();
    var client =
        RedisClient.builder().hostAndPort(new HostAndPort(host, port)).clientConfig(settings).build();
    try (client) {
      String me = Long.toString(source);
      String you = Long.toString(source + 1);
      client.sendCommand(command("GX.PUT"), "follow", me, you);
      Object related = client.sendCommand(command("GX.CHECK"), "follow", me, you, "5");
      expect(related.equals(List.of(1L, 0L)), related);
      try (Pipeline pipeline = client.pipelined()) {
        List<Response<Object>> puts = new ArrayList<>();
        for (int target = 1_000_000; target < 1_000_100; target++) {
          puts.add(pipeline.sendCommand(command("GX.PUT"), "like", me, Integer.toString(target)));
        }
        Response<Object> checked =
            pipeline.sendCommand(command("GX.CHECK"), "like", me, "1000099", "1000100");
        pipeline.sync();
        puts.forEach(Response::get);
        expect(checked.get().equals(List.of(1L, 0L)), checked.get());
      }
      try {
        client.sendCommand(command("GX.PUT"), "nothing", "1", "2");
        throw new IllegalStateException("an unknown kind was taken");
      } catch (JedisDataException refused) {
        expect(refused.getMessage().startsWith("UNKNOWN_KIND "), refused);
      }
    }
  }

  record Named(String name) implements ProtocolKeyword {
    public byte[] getBytes() {
      return name.getBytes(StandardCharsets.UTF_8);
    }
  }

  static RedisFuture<Object> send(
      RedisAsyncCommands<String, String> commands, String name, String... words) {
    var values = new CommandArgs<>(StringCodec.UTF8);
    for (String word : words) {
      values.add(word);
    }
    return commands.dispatch(new Named(name), new ObjectOutput<>(StringCodec.UTF8), values);
  }

  static void withLettuce(String address, long source) throws Exception {
    var client = io.lettuce.core.RedisClient.create("redis://" + address);
    try (var connection = client.connect()) {
      var commands = connection.async();
      String me = Long.toString(source);
      expect(commands.ping().get(10, TimeUnit.SECONDS).equals("PONG"), "ping");
      // One connection for all: what is asked is sent before anything is answered.
      List<RedisFuture<Object>> puts = new ArrayList<>();
      for (int target = 1_000_000; target < 1_000_100; target++) {
        puts.add(send(commands, "GX.PUT", "like", me, Integer.toString(target)));
      }
      var hydrated =
          send(commands, "GX.HYDRATE", me, "KINDS", "1", "like", "OBJECTS", "2", "1000099", "7");
      for (RedisFuture<Object> put : puts) {
        var changed = (Map<?, ?>) put.get(10, TimeUnit.SECONDS);
        expect(changed.get("state").equals("live"), changed);
      }
      Object related = hydrated.get(10, TimeUnit.SECONDS);
      expect(related.toString().equals("[[[like], [], []], [[], [], []]]"), related);
      try {
        send(commands, "GX.PUT", "nothing", "1", "2").get(10, TimeUnit.SECONDS);
        throw new IllegalStateException("an unknown kind was taken");
      } catch (ExecutionException refused) {
        expect(refused.getCause() instanceof RedisCommandExecutionException, refused);
        expect(refused.getCause().getMessage().startsWith("UNKNOWN_KIND "), refused);
      }
    } finally {
      client.shutdown(0, 2, TimeUnit.SECONDS);
    }
  }
}
