/* Kill points: the pool's writer dies after its n-th store to the segment, for every n.
 *
 * Built with ASA_FAULT: the core counts every store of a word, bodies included. After each death
 * the pool opens with every atom that was put and not freed, whole, with nothing else, with all its
 * bytes accounted for; only the operation under way may be either done or not. Then a successor
 * goes on. The format is walked the same way: a name is either no pool yet, or a pool.
 */
#include "common.h"

#include <errno.h>
#include <sys/wait.h>

#define DIED 77
#define SIZE (1u << 15)
#define IDS 24
#define OPERATIONS 60

static int countdown; /* stores until death; 0 = live for ever */

void asa_fault_point(void)
{
    if (countdown > 0 && --countdown == 0)
        _exit(DIED);
}

/* What the writer has done, in memory that outlives it. */
typedef struct {
    uint64_t done; /* operations that have returned */
    uint64_t version[IDS];
    uint32_t marks[IDS];
} diary;

static uint64_t size_of(uint64_t id, uint64_t version)
{
    return 1 + (id * 37 + version * 101) % 900;
}

static void operate(asa_pool *p, diary *d)
{
    static uint8_t body[1024];
    uint64_t state = d->done + 1, id = roll(&state) % IDS;
    if (d->version[id] == 0) {
        uint64_t version = d->done + 1, nbytes = size_of(id, version);
        asa_head head = {.id = id, .seq = version};
        fill(body, id, version, nbytes);
        int rc = asa_put(p, &head, body, nbytes);
        CHECK(rc == ASA_OK || rc == ASA_NO_SPACE);
        d->version[id] = rc == ASA_OK ? version : 0;
        d->marks[id] = 0;
    } else if (roll(&state) % 4 == 0) {
        CHECK(asa_mark(p, id, ASA_PINNED) == ASA_OK);
        d->marks[id] = ASA_PINNED;
    } else {
        CHECK(asa_free(p, id) == ASA_OK);
        d->version[id] = 0;
    }
    d->done++;
}

static int run(void (*life)(void *, diary *), void *base, diary *d, int n)
{
    pid_t pid = fork();
    CHECK(pid >= 0);
    if (pid == 0) {
        countdown = n;
        life(base, d);
        _exit(0);
    }
    int status;
    while (waitpid(pid, &status, 0) < 0)
        CHECK(errno == EINTR);
    CHECK(WIFEXITED(status) && (WEXITSTATUS(status) == 0 || WEXITSTATUS(status) == DIED));
    return WEXITSTATUS(status) == DIED;
}

static void work(void *base, diary *d)
{
    asa_pool pool;
    CHECK(asa_pool_open(&pool, base, SIZE, 1) == ASA_OK && pool.dropped == 0);
    while (d->done < OPERATIONS)
        operate(&pool, d);
}

/* Open what the dead left. `under_way` is the id that its last operation was about: that one may be
 * as before or as after, and the diary learns which. */
static void inspect(void *base, diary *d, uint64_t under_way)
{
    static uint8_t body[1024];
    asa_pool pool;
    CHECK(asa_pool_open(&pool, base, SIZE, 1) == ASA_OK);
    CHECK(pool.dropped == 0);
    uint64_t live = 0, used = 0;
    for (uint64_t id = 0; id < IDS; id++) {
        asa_found found;
        int rc = asa_get(&pool.view, id, &found, body, sizeof body);
        CHECK(rc == ASA_OK || rc == ASA_ABSENT);
        if (id == under_way) {
            d->version[id] = rc == ASA_OK ? found.head.seq : 0;
            d->marks[id] = found.marks;
        }
        CHECK((rc == ASA_OK) == (d->version[id] != 0));
        if (rc != ASA_OK)
            continue;
        uint64_t version = d->version[id];
        CHECK(found.head.seq == version && found.head.nbytes == size_of(id, version));
        CHECK(found.marks == d->marks[id] && intact(body, id, version, found.head.nbytes));
        live++;
        used += found.room;
    }
    CHECK(pool.live == live && pool.arena.used * ASA_GRAIN == used);
    CHECK(asa_arena_check(&pool.arena) == ASA_OK);
    asa_pool_close(&pool);
}

static int kill_writer(int n)
{
    void *base = pool_make(SIZE, IDS);
    diary *d = segment_make(ASA_PAGE);
    int died = run(work, base, d, n);
    uint64_t state = d->done + 1;
    inspect(base, d, died ? roll(&state) % IDS : UINT64_MAX);
    CHECK(run(work, base, d, 0) == 0 && d->done == OPERATIONS);
    inspect(base, d, UINT64_MAX);
    munmap(base, SIZE);
    munmap(d, ASA_PAGE);
    return died;
}

static void format(void *base, diary *d)
{
    static const uint64_t space[2] = {1, 2};
    CHECK(asa_format(base, SIZE, IDS, 0, space, 1) == ASA_OK);
    d->done = 1;
}

static int kill_format(int n)
{
    void *base = segment_make(SIZE);
    diary *d = segment_make(ASA_PAGE);
    int died = run(format, base, d, n);
    asa_view view;
    int rc = asa_view_open(&view, base, SIZE);
    CHECK(rc == ASA_OK || view.fault.what == ASA_BAD_UNFINISHED);
    CHECK(died || (rc == ASA_OK && d->done == 1));
    munmap(base, SIZE);
    munmap(d, ASA_PAGE);
    return died;
}

static int walk(int (*kill_at)(int))
{
    int n = 0;
    while (kill_at(n + 1))
        n++;
    return n;
}

int main(void)
{
    int formats = walk(kill_format), writes = walk(kill_writer);
    CHECK(formats > 4 && writes > 1000);
    printf("killpoints: writers killed at %d stores, formats at %d; every pool opened whole\n",
           writes, formats);
    return 0;
}
