// SPDX-License-Identifier: MIT
// Preloaded into the programs of a gVisor box.
// statx: without AT_NO_AUTOMOUNT. gVisor mounts nothing by itself, but refuses the flag, with which ls and stat of newer
// coreutils ask about every path.
// write: to its end. A pipe of the host takes in gVisor what fits at the moment, as if it did not block; Python's
// unbuffered streams, for one, count on more.
#include <sys/syscall.h>

#define AT_NO_AUTOMOUNT 0x800

extern int *__errno_location(void);

#if defined(__x86_64__)
static long call(long number, long a, long b, long c, long d, long e) {
    long result;
    register long fourth __asm__("r10") = d;
    register long fifth __asm__("r8") = e;
    __asm__ volatile("syscall"
                     : "=a"(result)
                     : "a"(number), "D"(a), "S"(b), "d"(c), "r"(fourth), "r"(fifth)
                     : "rcx", "r11", "memory");
    return result;
}
#elif defined(__aarch64__)
static long call(long number, long a, long b, long c, long d, long e) {
    register long x8 __asm__("x8") = number;
    register long x0 __asm__("x0") = a;
    register long x1 __asm__("x1") = b;
    register long x2 __asm__("x2") = c;
    register long x3 __asm__("x3") = d;
    register long x4 __asm__("x4") = e;
    __asm__ volatile("svc 0" : "+r"(x0) : "r"(x8), "r"(x1), "r"(x2), "r"(x3), "r"(x4) : "memory");
    return x0;
}
#else
#error "a machine that gVisor does not run on"
#endif

int statx(int directory, const char *path, int flags, unsigned mask, void *into) {
    long result = call(SYS_statx, directory, (long)path, flags & ~AT_NO_AUTOMOUNT, mask, (long)into);
    if (result >= 0) return (int)result;
    *__errno_location() = (int)-result;
    return -1;
}

#define EINTR 4
#define F_GETFL 3
#define O_NONBLOCK 0x800

long write(int fd, const void *from, unsigned long size) {
    unsigned long written = 0;
    for (;;) {
        long result = call(SYS_write, fd, (long)from + (long)written, (long)(size - written), 0, 0);
        if (result > 0) written += (unsigned long)result;
        if (written == size && result >= 0) return (long)written;
        if (result < 0 && !(result == -EINTR && written)) {
            if (written) return (long)written;
            *__errno_location() = (int)-result;
            return -1;
        }
        long flags = call(SYS_fcntl, fd, F_GETFL, 0, 0, 0);
        if (result == 0 || result == -EINTR || flags < 0 || flags & O_NONBLOCK) return (long)written;
    }
}
