#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# The HTTP interface with nothing but curl.
set -eu
url=${AGENTBOX_URL:-http://127.0.0.1:8080}

echo "# is the server well?"
curl -sS --fail "$url/health"
echo

echo "# run some Python"
curl -sS --fail "$url/v1/run" -H 'Content-Type: application/json' -d '{"code": "print(6 * 7)"}'
echo

echo "# bash, with a file, an argument and stdin"
curl -sS --fail "$url/v1/run" -H 'Content-Type: application/json' -d '{
  "language": "bash",
  "code": "cat greeting.txt; echo \"argument: $1\"; wc -c",
  "files": {"greeting.txt": "hello\n"},
  "args": ["one"],
  "stdin": "four"
}'
echo

echo "# output as it happens"
curl -sS --fail --no-buffer "$url/v1/run" -H 'Content-Type: application/json' -H 'Accept: text/event-stream' \
    -d '{"code": "for i in range(3): print(i, flush=True)"}'
