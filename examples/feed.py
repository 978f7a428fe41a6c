#!/usr/bin/env python3
"""A feed page in Python, with nothing but the standard library.

    python3 examples/feed.py

Writes a few relations, reads them back with the token of the last write, and asks for a whole
feed page in one call. GUANXI_SERVER names another service than the one on this machine.
"""

import json
import os
import urllib.error
import urllib.request

SERVER = os.environ.get("GUANXI_SERVER", "http://127.0.0.1:7420")
TIMEOUT_S = 5


class Refused(Exception):
    """An error answer: `code` is from a closed list, `retryable` says whether to try again."""

    def __init__(self, problem):
        super().__init__(problem["message"])
        self.code = problem["code"]
        self.retryable = problem["retryable"]


def call(method, path, body=None, at_least=None):
    request = urllib.request.Request(SERVER + path, method=method)
    if body is not None:
        request.data = json.dumps(body).encode()
        request.add_header("content-type", "application/json")
    if at_least is not None:
        request.add_header("guanxi-at-least", at_least)
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:
            return json.load(answer)
    except urllib.error.HTTPError as error:
        raise Refused(json.load(error)) from None


def main():
    viewer, author, post, other = 3001, 3002, 4001, 4002

    # Ids are 64 bit: strings in answers, strings or numbers in requests.
    call("PUT", f"/v1/edges/follow/{viewer}/{author}")
    written = call("PUT", f"/v1/edges/like/{viewer}/{post}", {"owner": str(author)})
    call("POST", f"/v1/counters/view/{post}", {"delta": 7, "key": f"py-{written['version']}"})

    # One call for the whole page. The token makes sure that the like is seen, wherever the
    # request lands.
    page = call(
        "POST",
        "/v1/hydrate",
        {
            "viewer": str(viewer),
            "objects": [{"id": str(post), "author": str(author)}, str(other)],
            "kinds": ["like", "favorite", "follow"],
            "tallies": ["like", "view"],
        },
        at_least=written["token"],
    )
    for item in page["objects"]:
        print(f"post {item['id']}: {item['related'] or 'nothing'}, {item['tallies']}")

    # Walk a list to its end: `next` is null there and nowhere else.
    path = f"/v1/edges/follow/{author}/incoming?limit=100"
    followers, cursor = [], ""
    while cursor is not None:
        part = call("GET", path + (f"&cursor={cursor}" if cursor else ""))
        followers += [item["id"] for item in part["items"]]
        cursor = part["next"]
    print(f"followers of {author}: {followers}")

    # Rules are enforced by the service and come back as codes.
    try:
        call("PUT", f"/v1/edges/follow/{viewer}/{viewer}")
    except Refused as refused:
        print(f"refused: {refused.code}: {refused}")


if __name__ == "__main__":
    main()
