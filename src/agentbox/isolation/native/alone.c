// SPDX-License-Identifier: MIT
// Loaded into a program before its first instruction: from then on neither it nor what it forks can start a program.
// Where a kernel of its own stands between the program and the host, nobody outside can judge each start; this one
// answer that kernel gives itself. Uses no library, so that it fits into programs of any.
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <linux/prctl.h>
#include <stddef.h>
#include <sys/syscall.h>

#define EACCES 13

#if defined(__x86_64__)
#define MACHINE AUDIT_ARCH_X86_64
static long call(long number, long a, long b, long c)
{
    long answer;
    register long d __asm__("r10") = 0;
    register long e __asm__("r8") = 0;
    __asm__ volatile("syscall"
                     : "=a"(answer)
                     : "a"(number), "D"(a), "S"(b), "d"(c), "r"(d), "r"(e)
                     : "rcx", "r11", "memory");
    return answer;
}
#elif defined(__aarch64__)
#define MACHINE AUDIT_ARCH_AARCH64
static long call(long number, long a, long b, long c)
{
    register long x8 __asm__("x8") = number;
    register long x0 __asm__("x0") = a;
    register long x1 __asm__("x1") = b;
    register long x2 __asm__("x2") = c;
    register long x3 __asm__("x3") = 0;
    register long x4 __asm__("x4") = 0;
    __asm__ volatile("svc 0" : "+r"(x0) : "r"(x8), "r"(x1), "r"(x2), "r"(x3), "r"(x4) : "memory");
    return x0;
}
#else
#error "no system call filter for this machine"
#endif

__attribute__((constructor)) static void be_alone(void)
{
    struct sock_filter rules[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, arch)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, MACHINE, 0, 5),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
#if defined(__x86_64__)
        // The numbers of the x32 ABI.
        BPF_JUMP(BPF_JMP | BPF_JGE | BPF_K, 0x40000000u, 3, 0),
#else
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, __NR_execve, 3, 0),
#endif
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, __NR_execve, 2, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, __NR_execveat, 1, 0),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EACCES),
    };
    struct sock_fprog filter = {sizeof rules / sizeof *rules, rules};
    if (call(__NR_prctl, PR_SET_NO_NEW_PRIVS, 1, 0) < 0 ||
        call(__NR_prctl, PR_SET_SECCOMP, SECCOMP_MODE_FILTER, (long)&filter) < 0)
        for (;;)
            call(__NR_exit_group, 126, 0, 0);
}
