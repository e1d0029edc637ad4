/* The last gasp: what a process writes down when it is killed by its own fault.
 *
 * Runs inside a signal handler on its own stack: no allocation, no lock, no stdio. The record goes
 * first, then a Crashing frame on the control channel (the supervisor acts on it while this process
 * is still being torn down), then one line and the native stack to stderr, then the signal goes on
 * to whoever was installed before (faulthandler, which prints the Python stack) or to its default
 * action, so that the exit status stays the signal.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <execinfo.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <time.h>
#include <ucontext.h>
#include <unistd.h>

#include "ring.h"

#define STACK_BYTES (128 * 1024)
#define FRAMES_MAX 64

static const int fatal[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGSYS};
#define FATAL_COUNT (int)(sizeof fatal / sizeof *fatal)

static struct sigaction before[FATAL_COUNT];
static dsec_page *_Atomic record_page; /* my outbox, once there is one */
static _Atomic int64_t at_record = -1; /* what it is at while it has no outbox to say that in */
static _Atomic int control_fd = -1; /* the control channel: it hears of this process' end */
static _Atomic int dying_thread; /* the thread that writes the record; 0 = nobody is dying */
static int armed;
static dsec_outbox *attached; /* the handle of record_page, which a forked child must not have */

static uint64_t instruction_pointer(const ucontext_t *context)
{
#if defined(__x86_64__)
    return (uint64_t)context->uc_mcontext.gregs[REG_RIP];
#elif defined(__aarch64__)
    return (uint64_t)context->uc_mcontext.pc;
#else
    (void)context;
    return 0;
#endif
}

static size_t put_text(char *out, size_t at, const char *text)
{
    while (*text)
        out[at++] = *text++;
    return at;
}

static size_t put_number(char *out, size_t at, uint64_t value, unsigned base)
{
    char digits[20];
    int n = 0;
    do {
        digits[n++] = "0123456789abcdef"[value % base];
        value /= base;
    } while (value);
    while (n)
        out[at++] = digits[--n];
    return at;
}

static void write_line(const dsec_crash_info *info)
{
    char line[200];
    size_t n = put_text(line, 0, "\ndsec: fatal signal ");
    n = put_number(line, n, info->signo, 10);
    n = put_text(line, n, " at address 0x");
    n = put_number(line, n, info->address, 16);
    n = put_text(line, n, ", instruction 0x");
    n = put_number(line, n, info->ip, 16);
    n = put_text(line, n, ", phase ");
    n = put_number(line, n, info->phase, 10);
    n = put_text(line, n, ", seq ");
    n = put_number(line, n, info->seq, 10);
    n = put_text(line, n, "; native stack:\n");
    ssize_t written = write(STDERR_FILENO, line, n);
    (void)written;
}

static char *put_bytes(char *at, uint64_t value, int count)
{
    while (count)
        *at++ = (char)(value >> 8 * --count);
    return at;
}

/* Say Crashing, as frames.py encodes it: a msgpack map of its tag and four numbers. It is one
 * datagram, so it can't come apart; where the channel is full the exit must do. */
static void announce(int signo, int32_t call, int32_t sender, int64_t seq)
{
    char frame[] = "\x85\xa1t\xa8" "crashing\xa6" "signal?\xa4" "call\xd2" "????\xa6" "sender\xd2"
                   "????\xa3" "seq\xd3" "????????";
    char *end = frame + sizeof frame - 1;
    put_bytes(end - 8, (uint64_t)seq, 8);
    put_bytes(end - 17, (uint32_t)sender, 4);
    put_bytes(end - 29, (uint32_t)call, 4);
    end[-36] = (char)signo;
    int fd = atomic_load_explicit(&control_fd, memory_order_relaxed);
    if (fd >= 0) {
        ssize_t sent = send(fd, frame, sizeof frame - 1, MSG_DONTWAIT | MSG_NOSIGNAL);
        (void)sent;
    }
}

static void write_record(int signo, const siginfo_t *info, const void *context)
{
    dsec_page *page = atomic_load_explicit(&record_page, memory_order_acquire);
    dsec_crash_info local = {.signo = (uint32_t)signo, .code = info->si_code};
    /* A signal that somebody sent carries a pid where a fault carries an address. */
    local.address = info->si_code > 0 ? (uint64_t)(uintptr_t)info->si_addr : 0;
    if (info->si_code <= 0 && info->si_pid != getpid()) /* 0 is one that has no number here */
        local.sender = info->si_pid > 0 ? info->si_pid : -1;
    local.ip = instruction_pointer(context);
    local.time_ns = dsec_now_ns();
    int64_t seq = atomic_load_explicit(&at_record, memory_order_relaxed);
    if (page) {
        int64_t since;
        dsec_progress_read(page, &local.phase, &local.seq, &since);
        local.epoch = page->ident.epoch;
        seq = (int64_t)local.seq;
        page->crash.info = local;
        /* SYNC POINT crash: pairs with dsec_crash_read() in segment.c. */
        atomic_store_explicit(&page->crash.written, 1, memory_order_release);
    }
    int call = signo == SIGSYS && info->si_code > 0 ? info->si_syscall : -1;
    announce(signo, call, local.sender, seq);
    write_line(&local);
}

static void write_stack(void)
{
    void *frames[FRAMES_MAX];
    int n = backtrace(frames, FRAMES_MAX);
    backtrace_symbols_fd(frames, n, STDERR_FILENO);
}

/* Give the signal to whoever had it before us. It is blocked or will be raised again by the same
 * instruction; the raise makes it certain, also for a fault that does not recur. */
static void pass_on(int signo)
{
    for (int i = 0; i < FATAL_COUNT; i++)
        if (fatal[i] == signo)
            sigaction(signo, &before[i], NULL);
    syscall(SYS_tgkill, getpid(), (int)syscall(SYS_gettid), signo);
}

static void on_fatal(int signo, siginfo_t *info, void *context)
{
    int saved = errno;
    int me = (int)syscall(SYS_gettid), nobody = 0;
    if (atomic_compare_exchange_strong(&dying_thread, &nobody, me)) {
        write_record(signo, info, context);
        write_stack();
    } else if (nobody != me) {
        /* Another thread is dying and takes the process with it; give it a second to finish. */
        struct timespec second = {.tv_sec = 1};
        nanosleep(&second, NULL);
    }
    /* Otherwise the fault was in the lines above (a smashed stack): the record is written, so
     * leave the rest to the handler before us. */
    errno = saved;
    pass_on(signo);
}

/* What user code forks is no runner. It may neither publish records, should it come back into the
 * runner's loop, nor announce its own crash, or leave it, where its parent's belongs. */
static void in_forked_child(void)
{
    atomic_store(&control_fd, -1);
    atomic_store_explicit(&record_page, NULL, memory_order_release);
    if (attached)
        dsec_outbox_close(attached);
}

/* Install the handlers. Call it after faulthandler.enable(), which would take the stack and the
 * signals otherwise. Returns 0 or an errno value. */
int dsec_crash_arm(int fd)
{
    atomic_store(&control_fd, fd);
    if (armed)
        return 0;
    int code = pthread_atfork(NULL, NULL, in_forked_child);
    if (code)
        return code;
    void *frames[4];
    backtrace(frames, 4); /* loads the unwinder now: it can't be loaded in a handler */
    int kind = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    uint8_t *stack = mmap(NULL, STACK_BYTES + DSEC_PAGE, PROT_NONE, kind, -1, 0);
    if (stack == MAP_FAILED)
        return errno;
    if (mprotect(stack + DSEC_PAGE, STACK_BYTES, PROT_READ | PROT_WRITE) != 0)
        return errno;
    stack_t alternate = {.ss_sp = stack + DSEC_PAGE, .ss_size = STACK_BYTES};
    if (sigaltstack(&alternate, NULL) != 0)
        return errno;
    struct sigaction action = {.sa_sigaction = on_fatal,
                               .sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER};
    sigemptyset(&action.sa_mask);
    for (int i = 0; i < FATAL_COUNT; i++)
        if (sigaction(fatal[i], &action, &before[i]) != 0)
            return errno;
    armed = 1;
    return 0;
}

/* From now on the record goes into this outbox, with its progress word's phase and seq; and it is
 * this process' alone: forked children get neither the handle nor the mapping, for stores into a
 * claimed record need no handle. Returns 0 or an errno value. */
int dsec_crash_attach(dsec_outbox *b)
{
    if (!b->page)
        return EINVAL;
    if (madvise(b->page, DSEC_PAGE + 2 * b->capacity, MADV_DONTFORK) != 0)
        return errno;
    attached = b;
    atomic_store_explicit(&record_page, (dsec_page *)b->page, memory_order_release);
    return 0;
}

/* Who has no outbox yet is at this record, -1 if at none. */
void dsec_crash_at(int64_t seq)
{
    atomic_store_explicit(&at_record, seq, memory_order_relaxed);
}

/* An outbox is being closed: don't write into it any more. */
void dsec_crash_forget(const void *page)
{
    dsec_page *mine = (dsec_page *)(uintptr_t)page;
    atomic_compare_exchange_strong(&record_page, &mine, NULL);
    if (attached && attached->page == page)
        attached = NULL;
}
