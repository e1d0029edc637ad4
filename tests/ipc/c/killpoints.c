/* Kill points: a writer, and a reader, die after their n-th store to shared memory, for every n.
 *
 * Built with DSEC_FAULT: the core counts each store to a shared word and each word of a header; the
 * payload counts here. After each death a reader must find a prefix of the records, whole, in order
 * and without a repetition; and a new incarnation must go on without a gap.
 */
#include "common.h"

#include <errno.h>
#include <sys/wait.h>

#define RECORDS 14
#define DIED 77

static int countdown; /* stores until death; 0 = live for ever */

void dsec_fault_point(void)
{
    if (countdown > 0 && --countdown == 0)
        _exit(DIED);
}

static uint64_t size_of(uint64_t seq)
{
    static const uint64_t sizes[] = {0, 1, 32, 33, 200, 700, 1500, 2016};
    return sizes[seq % (sizeof sizes / sizeof *sizes)];
}

static int wait_for(pid_t pid)
{
    int status;
    while (waitpid(pid, &status, 0) < 0)
        CHECK(errno == EINTR);
    CHECK(WIFEXITED(status) && (WEXITSTATUS(status) == 0 || WEXITSTATUS(status) == DIED));
    return WEXITSTATUS(status);
}

static void write_records(const test_segment *mine, const test_segment *theirs, void *group,
                          uint64_t first)
{
    dsec_outbox box;
    dsec_peer reader;
    outbox_open(&box, mine);
    peer_open(&reader, theirs);
    box.poll.spin = 0;
    box.group = group;
    CHECK(dsec_add_follower(&box, &reader, -1) == DSEC_OK);
    for (uint64_t seq = first; seq < RECORDS; seq++) {
        int64_t offset = dsec_claim(&box, size_of(seq), 20);
        CHECK(offset >= 0);
        for (uint64_t i = 0; i < size_of(seq); i++) {
            box.data[offset + (int64_t)i] = pattern(seq, i);
            if (i % 64 == 0)
                dsec_fault_point();
        }
        uint32_t flags = seq == RECORDS - 1 ? DSEC_FLAG_END : 0;
        CHECK(dsec_commit(&box, seq, DSEC_KIND_OBS, flags, size_of(seq)) == DSEC_OK);
    }
}

/* Read what is there; `seen` counts the records since the beginning. */
static void read_records(dsec_reader *r, uint64_t *seen)
{
    int rc;
    while ((rc = dsec_try_next(r, 0)) == DSEC_OK) {
        CHECK(r->now.seq == *seen);
        CHECK(r->now.nbytes == size_of(*seen));
        CHECK(intact(r->peer->data + r->now.offset, *seen, r->now.nbytes));
        (*seen)++;
        CHECK(dsec_release(r) == DSEC_OK);
    }
    CHECK(rc == DSEC_EMPTY);
}

/* One writer that dies at store n, then its successor. Returns whether it died. */
static int kill_writer(int n, uint64_t start)
{
    test_segment env = segment_make(ROLE_ENV, 4096, start);
    test_segment policy = segment_make(ROLE_POLICY, 4096, start);
    test_segment bell = segment_make(DSEC_GROUP_ROLE, 4096, 0);
    dsec_outbox mine;
    dsec_peer peer;
    dsec_reader reader;
    outbox_open(&mine, &policy);
    peer_open(&peer, &env);
    CHECK(dsec_reader_open(&reader, &mine, &peer) == DSEC_OK);
    uint64_t seen = 0;
    int died = 0;
    for (int life = 0; life < 2; life++) {
        pid_t pid = fork();
        CHECK(pid >= 0);
        if (pid == 0) {
            countdown = life == 0 ? n : 0;
            write_records(&env, &policy, bell.base, seen);
            _exit(0);
        }
        int status;
        while (waitpid(pid, &status, WNOHANG) == 0)
            read_records(&reader, &seen); /* makes room: the writer's waits are walked too */
        CHECK(WIFEXITED(status) && (WEXITSTATUS(status) == 0 || WEXITSTATUS(status) == DIED));
        read_records(&reader, &seen);
        died |= WEXITSTATUS(status) == DIED;
        CHECK(life == 0 || WEXITSTATUS(status) == 0);
        if (!died)
            break;
    }
    CHECK(seen == RECORDS);
    segment_free(&env);
    segment_free(&policy);
    segment_free(&bell);
    return died;
}

/* The reader's life: count what it has finished in `done` (shared) before it gives it back. */
static void consume(const test_segment *mine, const test_segment *theirs, volatile uint64_t *done)
{
    dsec_outbox box;
    dsec_peer peer;
    dsec_reader r;
    outbox_open(&box, mine);
    peer_open(&peer, theirs);
    box.poll.spin = 0;
    CHECK(dsec_reader_open(&r, &box, &peer) == DSEC_OK);
    uint64_t expected = *done;
    int first = 1;
    while (expected < RECORDS) {
        CHECK(dsec_next(&r, 20, 5) == DSEC_OK);
        /* Not given back before the death, so given again: at least once, never a gap. */
        CHECK(r.now.seq == expected || (first && r.now.seq + 1 == expected));
        CHECK(intact(peer.data + r.now.offset, r.now.seq, r.now.nbytes));
        first = 0;
        expected = r.now.seq + 1;
        *done = expected;
        dsec_fault_point();
        CHECK(dsec_release(&r) == DSEC_OK);
    }
}

static int kill_reader(int n, uint64_t start)
{
    test_segment env = segment_make(ROLE_ENV, 4096, start);
    test_segment policy = segment_make(ROLE_POLICY, 4096, start);
    int prot = PROT_READ | PROT_WRITE;
    volatile uint64_t *done = mmap(NULL, 4096, prot, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(done != MAP_FAILED);
    pid_t writer = fork();
    CHECK(writer >= 0);
    if (writer == 0) {
        write_records(&env, &policy, NULL, 0);
        _exit(0);
    }
    int died = 0;
    for (int life = 0; life < 2; life++) {
        pid_t pid = fork();
        CHECK(pid >= 0);
        if (pid == 0) {
            countdown = life == 0 ? n : 0;
            consume(&policy, &env, done);
            _exit(0);
        }
        int code = wait_for(pid);
        CHECK(life == 0 || code == 0);
        died |= code == DIED;
        if (!died)
            break;
    }
    CHECK(wait_for(writer) == 0 && *done == RECORDS);
    munmap((void *)(uintptr_t)done, 4096);
    segment_free(&env);
    segment_free(&policy);
    return died;
}

/* How many stores there are depends a little on who waits for whom, so the walk ends when the
 * process has outlived three counts in a row. */
static int walk(int (*kill_at)(int, uint64_t), uint64_t start)
{
    int n = 0, survived = 0;
    while (survived < 3)
        survived = kill_at(++n, start) ? 0 : survived + 1;
    return n - 3;
}

int main(void)
{
    static const uint64_t starts[] = {0, (1ull << 32) - 4096, 0 - 4096ull};
    int writes = 0, reads = 0;
    for (int i = 0; i < 3; i++) {
        int w = walk(kill_writer, starts[i]), r = walk(kill_reader, starts[i]);
        CHECK(w > 150 && r > 30);
        writes += w;
        reads += r;
    }
    printf("killpoints: writers killed at %d stores, readers at %d; no record torn, lost, "
           "repeated or out of order\n", writes, reads);
    return 0;
}
