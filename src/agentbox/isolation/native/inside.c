// SPDX-License-Identifier: MIT
// What agentbox has running inside a gVisor box, as the box's root without a guest's reach:
//   init            PID 1: says that the box is there, takes in orphans, does nothing else
//   signal N GROUP  sends a signal to a process group
//   sweep           ends every process but PID 1 and itself
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static int be_init(void)
{
    // Nobody waits for orphans: ignored, they leave no zombies.
    signal(SIGCHLD, SIG_IGN);
    int nothing = open("/dev/null", O_RDWR);
    if (write(1, "+", 1) != 1)
        return 1;
    if (nothing >= 0)
        for (int fd = 0; fd < 3; fd++)
            dup2(nothing, fd);
    for (;;)
        pause();
}

static int sweep(void)
{
    // Stopped first, so that nothing is made anew meanwhile.
    for (int round = 0; round < 2000; round++) {
        if (kill(-1, SIGSTOP) < 0 && errno == ESRCH)
            return 0;
        if (kill(-1, SIGKILL) < 0 && errno == ESRCH)
            return 0;
        struct timespec pause = {0, 1000000};
        nanosleep(&pause, NULL);
    }
    return 1;
}

int main(int count, char **words)
{
    if (count == 2 && !strcmp(words[1], "init"))
        return be_init();
    if (count == 4 && !strcmp(words[1], "signal"))
        return kill(-atoi(words[3]), atoi(words[2])) < 0 ? 1 : 0;
    if (count == 2 && !strcmp(words[1], "sweep"))
        return sweep();
    fprintf(stderr, "usage: %s init | signal N GROUP | sweep\n", words[0]);
    return 2;
}
