/* Lost wake-ups at full speed: no sanitizer, whose own instructions hide what the fences are for.
 *
 * One side goes to sleep at about the moment when the other publishes, a few nanoseconds more or
 * less each time. Nobody publishes again before the sleeper has answered, and the slice is long, so
 * a wake-up that is lost is a time-out. Without the fence of dsec_commit() or of dsec_arm() the
 * sleepers on an eventfd fail here, given two free cores; those on a futex hardly ever would, as
 * the operating system looks at the word once more (tests/model/test_doorbell.py explores both).
 */
#include "common.h"

#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <sys/eventfd.h>

#define ROUNDS 80000
#define LIMIT_S 5.0
#define SHORT 400
#define LONG 1200

typedef struct {
    dsec_outbox box[2];
    dsec_peer peer[2];
    dsec_reader reader;
    test_segment segment[2];
    uint64_t nbytes;
    uint64_t sleeps;
    int eventfd; /* where the reader sleeps; -1 = on the futex */
} pair;

static void pair_open(pair *p, uint64_t nbytes, int eventfd)
{
    memset(p, 0, sizeof *p);
    p->nbytes = nbytes;
    p->eventfd = eventfd;
    for (uint32_t role = 0; role < 2; role++) {
        p->segment[role] = segment_make(role, 4096, 0);
        outbox_open(&p->box[role], &p->segment[role]);
        peer_open(&p->peer[role], &p->segment[role]);
        p->box[role].poll.spin = 0;
    }
    CHECK(dsec_add_follower(&p->box[0], &p->peer[1], eventfd) == DSEC_OK);
    CHECK(dsec_reader_open(&p->reader, &p->box[1], &p->peer[0]) == DSEC_OK);
}

static void pair_close(pair *p)
{
    segment_free(&p->segment[0]);
    segment_free(&p->segment[1]);
}

static void dawdle(uint64_t *seed, uint64_t most)
{
    for (uint64_t i = roll_below(seed, most); i; i--)
        __asm__ volatile("" ::: "memory");
}

/* Poll a word of the other side without any of the core's waiting. */
static void poll_until(const dsec_word *word, uint64_t value)
{
    for (uint64_t i = 0; !dsec_reached(dsec_load_acquire(word), value); i++)
        if (i % 65536 == 65535)
            sched_yield(); /* on a single core, let the other side run */
}

static cpu_set_t allowed; /* before anybody was pinned: threads inherit that */

/* The two sides must run at the same time: each has its own core where there are two. */
static void pin(unsigned index)
{
    cpu_set_t mine;
    unsigned seen = 0;
    CPU_ZERO(&mine);
    for (int cpu = 0; cpu < CPU_SETSIZE; cpu++)
        if (CPU_ISSET(cpu, &allowed) && seen++ == index % (unsigned)CPU_COUNT(&allowed))
            CPU_SET(cpu, &mine);
    CHECK(pthread_setaffinity_np(pthread_self(), sizeof mine, &mine) == 0);
}

static void next_by_eventfd(pair *p)
{
    uint64_t rings;
    while (dsec_try_next(&p->reader, 0) == DSEC_EMPTY) {
        if (dsec_arm(&p->reader, 1) == DSEC_OK)
            continue;
        struct pollfd ready = {.fd = p->eventfd, .events = POLLIN};
        p->sleeps++;
        CHECK(poll(&ready, 1, (int)(LIMIT_S * 1000)) == 1);
        CHECK(read(p->eventfd, &rings, sizeof rings) == sizeof rings);
        CHECK(dsec_disarm(&p->reader) == DSEC_OK);
    }
}

static void *sleeping_reader(void *arg)
{
    pair *p = arg;
    uint64_t seed = 11;
    pin(1);
    for (uint64_t seq = 0; seq < ROUNDS; seq++) {
        if (p->eventfd >= 0)
            next_by_eventfd(p);
        else
            CHECK(dsec_next(&p->reader, LIMIT_S, 0) == DSEC_OK);
        CHECK(p->reader.now.seq == seq && dsec_release(&p->reader) == DSEC_OK);
        dawdle(&seed, LONG);
    }
    return NULL;
}

static void polling_writer(pair *p)
{
    const dsec_page *theirs = p->peer[1].page;
    uint64_t seed = 17;
    for (uint64_t seq = 0; seq < ROUNDS; seq++) {
        CHECK(dsec_claim(&p->box[0], p->nbytes, 0) >= 0);
        CHECK(dsec_commit(&p->box[0], seq, DSEC_KIND_OBS, 0, p->nbytes) == DSEC_OK);
        poll_until(&theirs->slot[0].cursor, p->box[0].tail);
        dawdle(&seed, SHORT);
    }
}

static void *polling_reader(void *arg)
{
    pair *p = arg;
    const dsec_page *theirs = p->peer[0].page;
    uint64_t seed = 23;
    pin(1);
    for (uint64_t seq = 0; seq < ROUNDS; seq++) {
        /* Two records fill the ring. Wait until it is full, or the end is near. */
        uint64_t ahead = seq + 2 <= ROUNDS ? 2 : 1;
        poll_until(&theirs->tail, p->reader.read + ahead * dsec_stride(p->nbytes));
        dawdle(&seed, SHORT);
        CHECK(dsec_try_next(&p->reader, 0) == DSEC_OK && p->reader.now.seq == seq);
        CHECK(dsec_release(&p->reader) == DSEC_OK);
    }
    return NULL;
}

static void sleeping_writer(pair *p)
{
    uint64_t seed = 29;
    for (uint64_t seq = 0; seq < ROUNDS; seq++) {
        CHECK(dsec_claim(&p->box[0], p->nbytes, LIMIT_S) >= 0);
        CHECK(dsec_commit(&p->box[0], seq, DSEC_KIND_OBS, 0, p->nbytes) == DSEC_OK);
        dawdle(&seed, LONG);
    }
}

static uint64_t run(void *(*reader)(void *), void (*writer)(pair *), uint64_t nbytes, int eventfd)
{
    pair p;
    pthread_t thread;
    pair_open(&p, nbytes, eventfd);
    CHECK(pthread_create(&thread, NULL, reader, &p) == 0);
    writer(&p);
    CHECK(pthread_join(thread, NULL) == 0);
    uint64_t sleeps = p.box[0].sleeps + p.box[1].sleeps + p.sleeps;
    pair_close(&p);
    return sleeps;
}

int main(void)
{
    dsec_slice_ns = 3600 * 1000000000LL;
    CHECK(sched_getaffinity(0, sizeof allowed, &allowed) == 0);
    pin(0);
    int bell = eventfd(0, EFD_CLOEXEC);
    CHECK(bell >= 0);
    uint64_t a = run(sleeping_reader, polling_writer, 8, -1);
    uint64_t b = run(sleeping_reader, polling_writer, 8, bell);
    uint64_t c = run(polling_reader, sleeping_writer, 2016, -1);
    CHECK(a > 100 && b > 100 && c > 100);
    printf("wakeups: 3 * %d records, %llu sleeps on a tail, %llu on an eventfd, %llu on a cursor; "
           "none overslept\n", ROUNDS, (unsigned long long)a, (unsigned long long)b,
           (unsigned long long)c);
    return 0;
}
