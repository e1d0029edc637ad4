/* Readers against the writer: frees, and reuse of the same places, under every read.
 *
 * Every body tells by its bytes which id and version it is, so a read that the pool calls good and
 * that is torn, or is another atom's, shows at once. Built in two ways: threads under the thread
 * sanitizer, and processes, with many millions of reads (`race SECONDS READS`). To show that this
 * harness catches what it should, the processes read by two weaker protocols, too; those must fail.
 */
#include "common.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <sys/wait.h>
#include <time.h>

#define SIZE (1u << 16)
#define IDS 24
#define BODY_MAX 4096
#define READERS 2

enum { SUM, REMOTE, SEQLOCK, LEASE };

typedef struct {
    _Atomic uint64_t stop, ready;
    _Atomic uint64_t reads, good, absent, busy, wrong, corrupt;
} tally;

typedef struct {
    void *base;
    tally *t;
    uint64_t seed;
    int protocol;
} job;

static uint64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000ull + (uint64_t)t.tv_nsec;
}

/* Fetch as a network card does: the cell, then header and body line by line, in any order. */
static int fetch(asa_view *v, uint64_t id, asa_found *found, uint8_t *copy, job *j)
{
    int rc = asa_find(v, id, found); /* where, and how much: a remote reader has this cached */
    if (rc != ASA_OK)
        return rc;
    uint64_t at = asa_grain_of(found->word) * ASA_GRAIN, n = ASA_HEAD + found->head.nbytes;
    const asa_word *from = (const asa_word *)(void *)(v->base + at);
    uint64_t words = (n + 7) / 8, lines = (words + 7) / 8, start = roll(&j->seed) % lines;
    uint64_t stride = 1 + 2 * (roll(&j->seed) % 4); /* a prime or 1: it visits every line */
    while (lines % stride == 0 && stride > 1)
        stride -= 2;
    for (uint64_t i = 0; i < lines; i++) {
        uint64_t line = (start + i * stride) % lines;
        for (uint64_t k = 8 * line; k < 8 * line + 8 && k < words; k++) {
            uint64_t word = asa_load(&from[k]);
            memcpy(copy + 8 * k, &word, 8);
        }
    }
    return ASA_OK;
}

/* REMOTE is the pool's own way over the network. The others are what it is not: a version at both
 * ends of the body (SEQLOCK), and a look at the cell before the copy only, believed (LEASE). */
static int other_get(asa_view *v, uint64_t id, asa_found *found, uint8_t *body, job *j)
{
    static _Thread_local uint8_t copy[ASA_HEAD + BODY_MAX + 8];
    int rc = fetch(v, id, found, copy, j);
    if (rc != ASA_OK)
        return rc;
    uint64_t n = found->head.nbytes, head, tail;
    if (j->protocol == REMOTE && (rc = asa_prove(found->word, id, copy, sizeof copy)) == ASA_OK) {
        memcpy(&found->head, copy, ASA_HEAD);
        n = found->head.nbytes;
    }
    memcpy(body, copy + ASA_HEAD, n);
    memcpy(&head, body + 8, 8);
    memcpy(&tail, body + n - 8, 8);
    return j->protocol == SEQLOCK && head != tail ? ASA_BUSY : rc;
}

static void judge(job *j, int rc, uint64_t id, const asa_found *found, const uint8_t *body)
{
    j->t->reads++;
    if (rc == ASA_ABSENT) {
        j->t->absent++;
    } else if (rc == ASA_BUSY) {
        j->t->busy++;
    } else if (rc != ASA_OK) {
        j->t->corrupt++;
    } else {
        uint64_t n = found->head.nbytes, version = found->head.seq;
        if (j->protocol == SEQLOCK) { /* it believes the version that stands in the body */
            memcpy(&version, body + 8, 8);
            n -= 8;
        }
        j->t->good++;
        j->t->wrong += !intact(body, id, version, n);
    }
}

static void *read_all(void *argument)
{
    job *j = argument;
    static _Thread_local uint8_t body[BODY_MAX + 8];
    asa_view view;
    CHECK(asa_view_open(&view, j->base, SIZE) == ASA_OK);
    j->t->ready++;
    while (!j->t->stop) {
        asa_found found;
        uint64_t id = roll(&j->seed) % IDS;
        int rc = j->protocol == SUM ? asa_get(&view, id, &found, body, sizeof body)
                                    : other_get(&view, id, &found, body, j);
        judge(j, rc, id, &found, body);
    }
    return NULL;
}

/* Free and put the same few ids in a pool where every place is soon taken again. */
static uint64_t write_all(void *base, tally *t, uint64_t deadline, uint64_t puts_max, int protocol)
{
    static uint8_t body[BODY_MAX];
    asa_pool pool;
    uint64_t state = 7, puts = 0;
    CHECK(asa_pool_open(&pool, base, SIZE, 1) == ASA_OK);
    while (t->ready < READERS && now_ns() < deadline)
        continue;
    while (puts < puts_max && now_ns() < deadline) {
        uint64_t id = roll(&state) % IDS, nbytes = 8 * (2 + roll(&state) % (BODY_MAX / 8 - 2));
        asa_head head = {.id = id, .seq = ++puts};
        int rc = asa_free(&pool, id);
        CHECK(rc == ASA_OK || rc == ASA_ABSENT);
        fill(body, id, puts, nbytes);
        if (protocol == SEQLOCK)
            memcpy(body + nbytes - 8, &puts, 8);
        rc = asa_put(&pool, &head, body, nbytes);
        CHECK(rc == ASA_OK || rc == ASA_NO_SPACE);
    }
    t->stop = 1;
    asa_pool_close(&pool);
    return puts;
}

#ifdef __SANITIZE_THREAD__
static void by_threads(uint64_t deadline, uint64_t puts_max)
{
    void *base = pool_make(SIZE, IDS);
    tally *t = segment_make(ASA_PAGE);
    pthread_t thread[READERS];
    job jobs[READERS];
    for (int i = 0; i < READERS; i++) {
        jobs[i] = (job){base, t, 100 + (uint64_t)i, SUM};
        CHECK(pthread_create(&thread[i], NULL, read_all, &jobs[i]) == 0);
    }
    uint64_t puts = write_all(base, t, deadline, puts_max, SUM);
    for (int i = 0; i < READERS; i++)
        CHECK(pthread_join(thread[i], NULL) == 0);
    printf("race: %lu reads by threads against %lu puts, %lu good, %lu wrong, %lu called corrupt\n",
           t->reads, puts, t->good, t->wrong, t->corrupt);
    CHECK(t->good > 0 && t->wrong == 0 && t->corrupt == 0);
    munmap(base, SIZE);
    munmap(t, ASA_PAGE);
}

#else
static void by_processes(const char *name, int protocol, uint64_t deadline, uint64_t reads_max)
{
    void *base = pool_make(SIZE, IDS);
    tally *t = segment_make(ASA_PAGE);
    pid_t pid[READERS + 1];
    for (int i = 0; i <= READERS; i++) {
        job j = {base, t, 100 + (uint64_t)i, protocol};
        pid[i] = fork();
        CHECK(pid[i] >= 0);
        if (pid[i] == 0) {
            if (i == READERS)
                write_all(base, t, deadline, UINT64_MAX, protocol);
            else
                read_all(&j);
            _exit(0);
        }
    }
    while (now_ns() < deadline && t->good < reads_max && (protocol <= REMOTE || !t->wrong))
        usleep(1000);
    t->stop = 1;
    for (int i = 0; i < READERS; i++) {
        int status;
        while (waitpid(pid[i], &status, 0) < 0)
            CHECK(errno == EINTR);
        CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    }
    kill(pid[READERS], 9);
    while (waitpid(pid[READERS], NULL, 0) < 0)
        CHECK(errno == EINTR);
    printf("race: %s: %lu reads by processes, %lu good, %lu absent, %lu gave up, %lu wrong, "
           "%lu called corrupt\n", name, t->reads, t->good, t->absent, t->busy, t->wrong,
           t->corrupt);
    CHECK(t->good > 0 && t->corrupt == 0);
    CHECK(protocol <= REMOTE ? t->wrong == 0 : t->wrong > 0);
    munmap(base, SIZE);
    munmap(t, ASA_PAGE);
}

#endif

int main(int argc, char **argv)
{
    setvbuf(stdout, NULL, _IOLBF, 0);
    uint64_t seconds = argc > 1 ? (uint64_t)atoi(argv[1]) : 3, second = 1000000000ull;
#ifdef __SANITIZE_THREAD__
    by_threads(now_ns() + seconds * second, 20000);
#else
    uint64_t reads_max = argc > 2 ? strtoull(argv[2], NULL, 10) : 1000000;
    by_processes("checksum and generation", SUM, now_ns() + seconds * second, reads_max);
    by_processes("remote, lines in any order", REMOTE, now_ns() + seconds * second, reads_max);
    by_processes("baseline, version at head and tail", SEQLOCK, now_ns() + 25 * second, UINT64_MAX);
    by_processes("baseline, lease only", LEASE, now_ns() + 25 * second, UINT64_MAX);
#endif
    return 0;
}
