"""A real client of Redis against Guanxi: redis-py, with both protocols."""

import sys

import redis

host, port = sys.argv[1].split(":")
first = int(sys.argv[2])

for source, protocol in ((first, 2), (first + 10, 3)):
    client = redis.Redis(
        host=host, port=int(port), protocol=protocol, client_name="test", decode_responses=True
    )
    assert client.ping()
    client.execute_command("GX.PUT", "follow", source, source + 1)
    related = client.execute_command("GX.CHECK", "follow", source, source + 1, source + 2)
    assert related == [1, 0], related

    pipeline = client.pipeline(transaction=False)
    for target in range(100):
        pipeline.execute_command("GX.PUT", "like", source, 1_000_000 + target)
    objects = (f"1000099:{source + 1}", 2_000_000)
    pipeline.execute_command(
        "GX.HYDRATE", source, "KINDS", 2, "like", "follow", "OBJECTS", 2, *objects
    )
    *puts, hydrated = pipeline.execute()
    assert hydrated == [[["like", "follow"], [], []], [[], [], []]], hydrated
    edge = client.execute_command("GX.GET", "follow", source, source + 1)
    if protocol == 3:
        assert edge["related"] is True and edge["group"] is None, edge
        assert all(put["changed"] is True for put in puts), puts
    try:
        client.execute_command("GX.PUT", "nothing", 1, 2)
        raise SystemExit("an unknown kind was taken")
    except redis.ResponseError as error:
        assert str(error).startswith("UNKNOWN_KIND "), error
    assert client.client_getname() == "test"
    assert client.info()["redis_mode"] == "standalone"
print("done")
