/* Waiting: the clock, the futex, and the signals that cut a wait short.
 *
 * This file knows no ring. Sleepers wait on the low 32 bits of a 64-bit word (a tail, a cursor or
 * a count) in a mapping that may be read-only; the futex is shared, for it lies in a memfd. Each
 * role waits with its own bit, so that waking one reader of a tail leaves the others asleep.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <sched.h>
#include <signal.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "ring.h"

/* A signal that lands between the last look and the futex call would be slept through; so no
 * single sleep is longer than this, and the watched signals are looked at again after it. A test
 * of the wake-ups makes it long, so that a slice can't hide a lost one. */
int64_t dsec_slice_ns = 250 * 1000 * 1000LL;

static _Atomic uint32_t signals_seen;     /* watched signals delivered to this process */
static _Atomic uint32_t signals_answered; /* of those, how many a wait has reported */
static struct sigaction chained[NSIG];

int64_t dsec_now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000LL + t.tv_nsec;
}

/* A limit that can't be added to the clock (infinity, not-a-number) means the end of time. */
int64_t dsec_deadline(double timeout_s)
{
    if (!(timeout_s < 1e9))
        return INT64_MAX;
    if (timeout_s <= 0)
        return 0;
    return dsec_now_ns() + (int64_t)(timeout_s * 1e9);
}

static void on_signal(int signo, siginfo_t *info, void *context)
{
    int saved = errno;
    atomic_fetch_add_explicit(&signals_seen, 1, memory_order_relaxed);
    const struct sigaction *old = &chained[signo];
    if (old->sa_flags & SA_SIGINFO)
        old->sa_sigaction(signo, info, context);
    else if (old->sa_handler != SIG_DFL && old->sa_handler != SIG_IGN)
        old->sa_handler(signo);
    errno = saved;
}

/* Let `signo` cut waits short also when it arrives while they poll. The present handler is kept
 * and called. Returns 0 or an errno value. */
int dsec_watch_signal(int signo)
{
    struct sigaction now, mine = {0};
    if (signo <= 0 || signo >= NSIG || sigaction(signo, NULL, &now) != 0)
        return EINVAL;
    if ((now.sa_flags & SA_SIGINFO) && now.sa_sigaction == on_signal)
        return 0;
    chained[signo] = now;
    mine.sa_sigaction = on_signal;
    mine.sa_flags = SA_SIGINFO | (now.sa_flags & SA_ONSTACK);
    mine.sa_mask = now.sa_mask;
    return sigaction(signo, &mine, NULL) == 0 ? 0 : errno;
}

/* Has a watched signal arrived that no wait has reported yet? True at most once for each. */
int dsec_interrupted(void)
{
    uint32_t seen = atomic_load_explicit(&signals_seen, memory_order_relaxed);
    if (seen == atomic_load_explicit(&signals_answered, memory_order_relaxed))
        return 0;
    atomic_store_explicit(&signals_answered, seen, memory_order_relaxed);
    return 1;
}

/* A yield that takes longer than this lost the processor to somebody who doesn't yield. */
#define SLOW_NS (250 * 1000)
#define PENALTY_MIN 32u
#define PENALTY_MAX 4096u

/* How often the wait that begins may poll. Polling with sched_yield() beats sleeping by far while
 * all who are runnable work in small steps, and is ruin beside one who computes: the scheduler
 * makes who yields wait for a whole slice. So each slow yield has the next waits sleep at once,
 * twice as many as the slow one before had; a poll that goes well halves that. */
uint32_t dsec_polls(dsec_patience *p)
{
    if (p->skip > 0) {
        p->skip--;
        return 0;
    }
    p->penalty /= 2;
    return p->spin;
}

/* Let others run. DSEC_OK: poll on; DSEC_EMPTY: look once more, then sleep; DSEC_INTERRUPTED and
 * DSEC_TIMEOUT: look once more, then give up. */
int dsec_yield(dsec_patience *p, int64_t deadline_ns)
{
    int64_t before = dsec_now_ns();
    sched_yield();
    int64_t now = dsec_now_ns();
    if (dsec_interrupted())
        return DSEC_INTERRUPTED;
    if (now >= deadline_ns)
        return DSEC_TIMEOUT;
    if (now - before < SLOW_NS)
        return DSEC_OK;
    p->penalty = p->penalty < PENALTY_MIN / 4 ? PENALTY_MIN : p->penalty * 4;
    if (p->penalty > PENALTY_MAX)
        p->penalty = PENALTY_MAX;
    p->skip = p->penalty;
    return DSEC_EMPTY;
}

static uint32_t *futex_word(const dsec_word *word)
{
    return (uint32_t *)(uintptr_t)&word->value;
}

/* Sleep while the low half of the word is that of `seen`, at most until the deadline or for one
 * slice. DSEC_OK says only "look again"; DSEC_INTERRUPTED that a signal came. */
int dsec_sleep(const dsec_word *word, uint64_t seen, uint32_t bits, int64_t deadline_ns)
{
    int64_t until = dsec_now_ns() + dsec_slice_ns;
    if (until > deadline_ns)
        until = deadline_ns;
    struct timespec t = {.tv_sec = until / 1000000000LL, .tv_nsec = until % 1000000000LL};
    long rc = syscall(SYS_futex, futex_word(word), FUTEX_WAIT_BITSET, (uint32_t)seen, &t, NULL,
                      bits);
    if (rc != 0 && errno == EINTR) {
        dsec_interrupted(); /* this wait reports it: not once more in the next */
        return DSEC_INTERRUPTED;
    }
    return DSEC_OK;
}

void dsec_wake(const dsec_word *word, uint32_t bits)
{
    syscall(SYS_futex, futex_word(word), FUTEX_WAKE_BITSET, INT_MAX, NULL, NULL, bits);
}
