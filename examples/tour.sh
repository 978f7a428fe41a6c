#!/bin/sh
# A tour of the HTTP API with curl. Needs a running service; GUANXI_SERVER names another one.
#   sh examples/tour.sh
set -eu
server=${GUANXI_SERVER:-http://127.0.0.1:7420}

# call METHOD PATH [JSON]: shows the call and its answer, and stops at an error.
call() {
  printf '\n%s %s %s\n' "$1" "$2" "${3:-}"
  if [ $# -ge 3 ]; then
    curl --silent --show-error --fail-with-body -X "$1" "$server$2" \
      -H 'content-type: application/json' -d "$3"
  else
    curl --silent --show-error --fail-with-body -X "$1" "$server$2" \
      -H 'content-type: application/json'
  fi
  echo
}

echo "== 1001 and 1002 follow each other; 1003 follows 1002"
call PUT /v1/edges/follow/1001/1002
call PUT /v1/edges/follow/1002/1001
call PUT /v1/edges/follow/1003/1002
call GET /v1/edges/follow/1001/1002

echo "== The followers of 1002, newest first, and which of them 1001 knows"
call GET '/v1/edges/follow/1002/incoming?limit=10'
call PUT /v1/edges/follow/1001/1003
call GET /v1/edges/follow/1001/known/1002

echo "== A group, and a remark on the edge"
call POST /v1/groups/follow/1001 '{"name":"friends"}'
call PUT /v1/edges/follow/1001/1002 '{"group":"friends","data":"met in Kyoto"}'
call GET '/v1/edges/follow/1001/outgoing?mutual=true'

echo "== Post 2001 by 1002: 1001 likes it, it is viewed three times, a feed asks for all of it at once"
call PUT /v1/edges/like/1001/2001 '{"owner":"1002"}'
call POST /v1/counters/view/2001 '{"delta":3}'
call POST /v1/hydrate '{"viewer":"1001","objects":[{"id":"2001","author":"1002"},"2002"],"kinds":["like","follow"],"tallies":["like","view"]}'
call POST /v1/tallies '{"ids":["1002"],"kinds":["follow","like"]}'

echo "== 1003 is private: a follow waits until it is approved"
call PUT /v1/nodes/user/1003 '{"private":true}'
call PUT /v1/edges/follow/1002/1003
call POST /v1/edges/follow/1002/1003/approve
call PUT /v1/nodes/user/1003 '{"private":false}'

echo "== A block cuts both follows at once"
call PUT /v1/edges/block/1003/1002
call GET /v1/edges/follow/1002/1003
call DELETE /v1/edges/block/1003/1002

echo "== 1001 leaves: everything of it goes, by a job that ends with a receipt"
call DELETE /v1/nodes/user/1001
