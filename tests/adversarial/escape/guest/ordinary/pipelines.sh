# SPDX-License-Identifier: MIT
set -euo pipefail
test "$(seq 1 100 | grep 7 | wc -l | tr -d ' ')" = 19
test "$(printf 'b\na\n' | sort | head -1)" = a
echo to-the-device > /dev/stdout
echo to-the-device > /dev/stderr
echo appended >> /dev/stderr
diff <(echo same) <(echo same)
mkdir -p a/b && echo text > a/b/c && tar cf a.tar a && rm -r a && tar xf a.tar && grep -q text a/b/c
cp /usr/bin/env copy && ./copy true
cat <<'TEXT' > script.py
import sys
print(sys.argv[1])
TEXT
test "$(python3 script.py argument)" = argument
sleep 0.01 & wait $!
trap 'echo trapped' USR1; kill -USR1 $$
if read -r line; then exit 1; fi
id -u > /dev/null && whoami && hostname && date > /dev/null && uname -a > /dev/null
df /work > /dev/null
find /usr/lib -maxdepth 1 > /dev/null
echo works
