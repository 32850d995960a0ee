# SPDX-License-Identifier: MIT
"""Other programs: their output, their codes, their input, their end."""

import os
import subprocess
import sys
import time

print(subprocess.run(["echo", "captured"], capture_output=True, text=True))
print(subprocess.check_output("printf '%s\\n' b a | sort", shell=True, text=True).split())
sys.stdout.flush()
print(subprocess.run(["sh", "-c", "echo straight through; exit 3"]).returncode, flush=True)
print(subprocess.run(["sh", "-c", "echo *"], cwd="data", capture_output=True).stdout)
print(subprocess.run(["cat"], input=b"fed", stdout=subprocess.PIPE).stdout)
try:
    subprocess.run(["sleep", "30"], timeout=0.2)
except subprocess.TimeoutExpired as error:
    print("too slow:", error)
try:
    subprocess.run(["false"], check=True)
except subprocess.CalledProcessError as error:
    print(error)
for command in (["no-such-program"], ["ls", "/"]):
    try:
        subprocess.run(command)
    except OSError as error:
        print(type(error).__name__, error)
first = subprocess.Popen(["printf", "%s\n", "pear", "apple"], stdout=subprocess.PIPE)
second = subprocess.Popen(["sort"], stdin=first.stdout, stdout=subprocess.PIPE, text=True)
first.stdout.close()
print(second.communicate()[0].split(), first.wait())
talk = subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1)
for word in ("one", "two"):
    talk.stdin.write(word + "\n")
    print("answer:", talk.stdout.readline().strip())
talk.stdin.close()
print(talk.wait())
late = subprocess.Popen(["sh", "-c", "sleep 0.2; echo late"], stdout=subprocess.PIPE)
looks = 0
while late.poll() is None:
    looks += 1
    time.sleep(0.01)
print("looked", looks, "times for", late.stdout.read())
asleep = subprocess.Popen(["sleep", "30"])
asleep.terminate()
print(asleep.wait(), os.system("exit 4"), os.popen("echo popen").read().strip(), flush=True)
print(os.spawnlp(os.P_WAIT, "sh", "sh", "-c", "echo spawned; exit 5"), flush=True)
print(os.waitstatus_to_exitcode(os.waitpid(os.posix_spawn("/bin/echo", ["echo", "posix"], os.environ), 0)[1]))
with open("out/made-by-echo.txt", "w") as file:
    subprocess.run(["echo", "into a file"], stdout=file, check=True)
subprocess.run("echo by itself > out/made-by-sh.txt", shell=True, check=True)
print(open("out/made-by-echo.txt").read(), open("out/made-by-sh.txt").read())
