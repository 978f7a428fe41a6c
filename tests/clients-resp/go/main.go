// Real clients of Redis against Guanxi: go-redis and rueidis, with both protocols.
package main

import (
	"context"
	"fmt"
	"log"
	"os"
	"strconv"
	"strings"

	"github.com/redis/go-redis/v9"
	"github.com/redis/rueidis"
)

func check(is bool, what string, seen any) {
	if !is {
		log.Fatalf("%s: %v", what, seen)
	}
}

func withGoRedis(ctx context.Context, address string, protocol int, source int) {
	client := redis.NewClient(&redis.Options{Addr: address, Protocol: protocol, ClientName: "test"})
	defer client.Close()
	check(client.Ping(ctx).Err() == nil, "ping", client.Ping(ctx))
	put := client.Do(ctx, "GX.PUT", "follow", source, source+1)
	check(put.Err() == nil, "put", put)
	related, err := client.Do(ctx, "GX.CHECK", "follow", source, source+1, source+2).Int64Slice()
	check(err == nil && fmt.Sprint(related) == "[1 0]", "check", related)

	pipeline := client.Pipeline()
	for target := range 100 {
		pipeline.Do(ctx, "GX.PUT", "like", source, 1_000_000+target)
	}
	last := pipeline.Do(ctx, "GX.HYDRATE", source, "KINDS", 2, "like", "follow", "OBJECTS", 2,
		fmt.Sprintf("%d:%d", 1_000_099, source+1), 2_000_000)
	_, err = pipeline.Exec(ctx)
	check(err == nil, "pipeline", err)
	check(fmt.Sprint(last.Val()) == "[[[like follow] [] []] [[] [] []]]", "hydrate", last)

	get := client.Do(ctx, "GX.GET", "follow", source, source+1)
	check(get.Err() == nil, "get", get)
	if protocol == 3 {
		fields, is := get.Val().(map[any]any)
		check(is && fields["related"] == true && fields["group"] == nil, "get", get)
	}
	wrong := client.Do(ctx, "GX.PUT", "nothing", 1, 2).Err()
	check(wrong != nil && strings.HasPrefix(wrong.Error(), "UNKNOWN_KIND "), "error", wrong)
}

func withRueidis(ctx context.Context, address string, source int) {
	client, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{address}, DisableCache: true})
	check(err == nil, "connect", err)
	defer client.Close()
	text := strconv.Itoa
	commands := make(rueidis.Commands, 0, 100)
	for target := range 100 {
		put := client.B().Arbitrary("GX.PUT").Args("follow", text(source), text(source+1+target)).Build()
		commands = append(commands, put)
	}
	for _, put := range client.DoMulti(ctx, commands...) {
		fields, err := put.AsMap()
		check(err == nil, "put", err)
		state := fields["state"]
		said, _ := state.ToString()
		check(said == "live", "put", said)
	}
	tally := client.B().Arbitrary("GX.TALLY").Args("follow", text(source)).Build()
	numbers, err := client.Do(ctx, tally).ToArray()
	check(err == nil && len(numbers) == 1, "tally", err)
	outgoing, err := numbers[0].AsIntMap()
	check(err == nil && outgoing["outgoing"] == 100, "tally", outgoing)
}

func main() {
	source, _ := strconv.Atoi(os.Args[2])
	ctx := context.Background()
	withGoRedis(ctx, os.Args[1], 2, source)
	withGoRedis(ctx, os.Args[1], 3, source+10)
	withRueidis(ctx, os.Args[1], source+1_000)
	fmt.Println("done")
}
