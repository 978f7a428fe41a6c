// A feed page in Go, with nothing but the standard library.
//
//	go run examples/feed.go
//
// GUANXI_SERVER names another service than the one on this machine.
package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"log"
	"net/http"
	"os"
	"strings"
	"time"
)

// Problem is an error answer: Code is from a closed list, Retryable says whether to try again.
type Problem struct {
	Code      string `json:"code"`
	Message   string `json:"message"`
	Retryable bool   `json:"retryable"`
}

func (p *Problem) Error() string { return p.Code + ": " + p.Message }

// Client keeps connections open; one per process is enough.
type Client struct {
	server string
	http   http.Client
}

// call sends body (nil for none) and reads the answer into answer.
func (c *Client) call(method, path string, body, answer any) error {
	var encoded bytes.Buffer
	if body != nil {
		if err := json.NewEncoder(&encoded).Encode(body); err != nil {
			return err
		}
	}
	request, err := http.NewRequest(method, c.server+path, &encoded)
	if err != nil {
		return err
	}
	if body != nil {
		request.Header.Set("content-type", "application/json")
	}
	response, err := c.http.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if response.StatusCode >= 400 {
		problem := &Problem{}
		if err := json.NewDecoder(response.Body).Decode(problem); err != nil {
			return err
		}
		return problem
	}
	return json.NewDecoder(response.Body).Decode(answer)
}

type object struct {
	ID     string `json:"id"`
	Author string `json:"author,omitempty"`
}

type hydrated struct {
	ID      string         `json:"id"`
	Related []string       `json:"related"`
	Tallies map[string]int `json:"tallies"`
}

func main() {
	server := os.Getenv("GUANXI_SERVER")
	if server == "" {
		server = "http://127.0.0.1:7420"
	}
	client := &Client{server: server, http: http.Client{Timeout: 5 * time.Second}}

	var written struct {
		Changed bool   `json:"changed"`
		Token   string `json:"token"`
	}
	must(client.call("PUT", "/v1/edges/follow/5001/5002", nil, &written))
	must(client.call("PUT", "/v1/edges/like/5001/6001", map[string]string{"owner": "5002"}, &written))

	// One call for the whole page; the token of the last write makes sure that it is seen.
	var page struct {
		Objects []hydrated `json:"objects"`
	}
	must(client.call("POST", "/v1/hydrate?at_least="+written.Token, map[string]any{
		"viewer":  "5001",
		"objects": []object{{ID: "6001", Author: "5002"}, {ID: "6002"}},
		"kinds":   []string{"like", "follow"},
		"tallies": []string{"like"},
	}, &page))
	for _, item := range page.Objects {
		fmt.Printf("post %s: [%s], %d likes\n", item.ID, strings.Join(item.Related, " "), item.Tallies["like"])
	}

	// Rules are enforced by the service and come back as codes.
	if err := client.call("PUT", "/v1/edges/follow/5001/5001", nil, &written); err != nil {
		fmt.Println("refused:", err)
	}
}

func must(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
