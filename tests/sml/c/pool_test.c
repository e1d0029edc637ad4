/* The pool against a plain array, and hostile segments, under the address and undefined-behaviour
 * sanitizers.
 *
 * The model keeps for each id the version and size that was put last. After every so many steps the
 * pool is opened anew from its segment, which must change nothing.
 */
#include "common.h"

#define IDS 600
#define BODY_MAX 9000
#define STEPS 60000
#define SIZE (1u << 20)

typedef struct {
    uint64_t version; /* 0: not there */
    uint64_t nbytes;
    uint32_t marks;
} model;

static uint8_t body[1 << 16], found_body[1 << 16];

static void compare(asa_pool *p, const model *m, uint64_t first)
{
    uint64_t live = 0, payload = 0;
    for (uint64_t i = 0; i < IDS; i++) {
        asa_found found;
        int rc = asa_get(&p->view, first + i, &found, found_body, sizeof found_body);
        CHECK(rc == (m[i].version ? ASA_OK : ASA_ABSENT));
        if (rc == ASA_OK) {
            CHECK(found.head.nbytes == m[i].nbytes && found.marks == m[i].marks);
            CHECK(intact(found_body, first + i, m[i].version, m[i].nbytes));
            live++;
            payload += m[i].nbytes;
        }
    }
    CHECK(p->live == live && p->payload == payload && p->dropped == 0);
    CHECK(asa_arena_check(&p->arena) == ASA_OK);
}

static void reopen(asa_pool *p, void *base)
{
    uint64_t live = p->live, used = p->arena.used, tombs = p->tombs;
    asa_pool_close(p);
    CHECK(asa_pool_open(p, base, SIZE, 1) == ASA_OK);
    CHECK(p->live == live && p->arena.used == used && p->tombs == tombs);
}

static void run_model(uint64_t seed, uint64_t first, uint64_t atoms_max, uint64_t largest)
{
    static model m[IDS];
    uint64_t state = seed, refused = 0, no_cell = 0;
    void *base = pool_make(SIZE, atoms_max);
    asa_pool pool;
    memset(m, 0, sizeof m);
    CHECK(asa_pool_open(&pool, base, SIZE, 1) == ASA_OK);
    for (uint64_t step = 1; step <= STEPS; step++) {
        uint64_t i = roll(&state) % IDS, id = first + i, what = roll(&state) % 100;
        if (what < 50) {
            uint64_t nbytes = 1 + roll(&state) % largest;
            asa_head head = {.id = id, .agent = 3, .seq = step};
            fill(body, id, step, nbytes);
            int rc = asa_put(&pool, &head, body, nbytes);
            refused += rc == ASA_NO_SPACE;
            no_cell += rc == ASA_NO_CELL;
            CHECK(m[i].version ? rc == ASA_EXISTS : rc == ASA_OK || rc == ASA_NO_SPACE ||
                                                        rc == ASA_NO_CELL);
            if (rc == ASA_OK)
                m[i] = (model){step, nbytes, 0};
        } else if (what < 95) {
            int rc = asa_free(&pool, id);
            CHECK(rc == (m[i].version ? ASA_OK : ASA_ABSENT));
            m[i].version = 0;
        } else {
            uint32_t marks = (uint32_t)roll(&state) % 4;
            CHECK(asa_mark(&pool, id, marks) == (m[i].version ? ASA_OK : ASA_ABSENT));
            m[i].marks = marks;
        }
        if (step % 5000 == 0)
            compare(&pool, m, first);
        if (step % 7000 == 0)
            reopen(&pool, base);
    }
    compare(&pool, m, first);
    CHECK(atoms_max < IDS / 4 ? no_cell > 0 : largest < 4000 || refused > 0);
    asa_pool_close(&pool);
    munmap(base, SIZE);
}

/* Everything a reader and a writer do on a segment of arbitrary bytes ends, with some code. */
static void attack(asa_view *v, uint64_t *state)
{
    asa_found found;
    for (int i = 0; i < 40; i++) {
        uint64_t id = roll(state) % 40;
        int rc = asa_get(v, id, &found, found_body, sizeof found_body);
        CHECK(rc <= ASA_OK && rc >= ASA_SMALL);
        if (rc == ASA_OK)
            CHECK(intact(found_body, id, found.head.seq, found.head.nbytes));
        rc = asa_look(v, roll(state) % (v->ncells + 1), &found);
        CHECK(rc <= ASA_OK && rc >= ASA_MISUSE);
    }
}

static void damage(uint8_t *copy, uint64_t size, uint64_t *state)
{
    uint64_t hits = 1 + roll(state) % 8;
    for (uint64_t i = 0; i < hits; i++) {
        uint64_t where = roll(state) % 4;
        uint64_t at = where == 0 ? 0 : where == 1 ? ASA_PAGE : 0;
        uint64_t span = where == 0 ? 256 : where == 1 ? 1024 : size;
        uint64_t word = roll(state) % 3 ? roll(state) : roll(state) % size;
        at += roll(state) % (span - 8);
        if (roll(state) % 2)
            copy[at] ^= (uint8_t)(1u << roll(state) % 8);
        else
            memcpy(copy + at, &word, 8);
    }
}

static void run_hostile(uint64_t rounds)
{
    const uint64_t size = 1 << 16;
    uint64_t state = 99, opened = 0, dropped = 0;
    uint8_t *good = pool_make(size, 64), *copy = segment_make(size);
    asa_pool pool;
    CHECK(asa_pool_open(&pool, good, size, 1) == ASA_OK);
    for (uint64_t id = 0; id < 40; id++) {
        asa_head head = {.id = id, .seq = id * 3};
        uint64_t nbytes = 20 + id * 30;
        fill(body, id, id * 3, nbytes);
        CHECK(asa_put(&pool, &head, body, nbytes) == ASA_OK);
    }
    CHECK(asa_free(&pool, 7) == ASA_OK && asa_free(&pool, 8) == ASA_OK);
    asa_pool_close(&pool);
    for (uint64_t round = 0; round < rounds; round++) {
        asa_view view;
        memcpy(copy, good, size);
        damage(copy, size, &state);
        if (asa_view_open(&view, copy, size) != ASA_OK) {
            CHECK(view.fault.what != 0);
            continue;
        }
        attack(&view, &state);
        if (asa_pool_open(&pool, copy, size, (int)(round & 1)) != ASA_OK)
            continue;
        CHECK(asa_arena_check(&pool.arena) == ASA_OK);
        opened++;
        dropped += pool.dropped;
        asa_head head = {.id = 1000, .seq = 5};
        fill(body, 1000, 5, 100);
        CHECK(asa_put(&pool, &head, body, 100) == ASA_OK);
        if (round % 3 == 0)
            damage(copy, size, &state); /* under the living writer, too */
        for (uint64_t id = 0; id < 40; id++)
            CHECK(asa_free(&pool, id) <= ASA_OK);
        attack(&pool.view, &state);
        CHECK(asa_arena_check(&pool.arena) == ASA_OK);
        asa_pool_close(&pool);
    }
    CHECK(opened > rounds / 4 && dropped > 0);
    munmap(good, size);
    munmap(copy, size);
}

static void run_bounds(void)
{
    uint64_t space[2] = {0, 0}, size = 3 * ASA_PAGE;
    uint8_t *base = segment_make(size);
    asa_pool pool;
    CHECK(asa_format(base, 4096, 1, 0, space, 0) == ASA_MISUSE);
    CHECK(asa_format(base, size, 513, 0, space, 0) == ASA_MISUSE);
    CHECK(asa_format(base, size, 500, 0, space, 0) == ASA_OK);
    CHECK(asa_pool_open(&pool, base, size, 1) == ASA_OK);
    asa_head head = {.id = UINT64_MAX};
    uint64_t most = pool.arena.grains * ASA_GRAIN - ASA_HEAD;
    CHECK(asa_put(&pool, &head, body, most + 1) == ASA_TOO_LARGE);
    CHECK(asa_put(&pool, &head, body, 0) == ASA_MISUSE);
    fill(body, 5, 0, most);
    while (asa_room(most) > pool.arena.grains * ASA_GRAIN)
        most -= ASA_GRAIN;
    CHECK(asa_put(&pool, &head, body, most) == ASA_OK);
    head.id = 0;
    CHECK(asa_put(&pool, &head, body, 1) == ASA_OK || pool.arena.used == pool.arena.grains);
    asa_found found;
    CHECK(asa_get(&pool.view, UINT64_MAX, &found, found_body, 10) == ASA_SMALL);
    CHECK(found.head.nbytes == most);
    CHECK(asa_lease(&pool) == 0 && asa_lease(&pool) == 1);
    asa_pool_close(&pool);
    CHECK(asa_free(&pool, 0) == ASA_MISUSE && asa_lease(&pool) == ASA_MISUSE);
    CHECK(asa_put(&pool, &head, body, 1) == ASA_MISUSE);
    munmap(base, size);
}

int main(void)
{
    run_bounds();
    run_model(1, 0, 2000, BODY_MAX);
    run_model(2, UINT64_MAX - IDS + 1, 700, 700);
    run_model(3, 1ull << 40, 100, 2000);
    run_hostile(20000);
    printf("pool_test: 3 models of %d steps, 20000 hostile segments\n", STEPS);
    return 0;
}
