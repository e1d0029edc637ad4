/* The pool's arena under churn, for `python -m bench asa`: what it holds, and what a call costs.
 *
 * asa_churn pool|arena BYTES ATOMS_MAX OPERATIONS LOW HIGH: fill a pool with bodies of LOW to HIGH
 * bytes until it refuses one, then go on freeing random atoms and putting new ones, always at the
 * edge of being full. `arena` takes and gives the same places, but writes no bodies and no cells.
 * Prints one JSON object. Built and run by bench/asa.py; no part of the product.
 */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#include "pool.h"

#define SAMPLES 200000

typedef struct {
    uint64_t count;
    uint32_t ns[SAMPLES];
} timing;

static timing take, give, put, release;
static uint64_t *ids, *sizes, nids, next_id, payload, state = 12345;
static int bare; /* the arena alone */

static uint64_t now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000ull + (uint64_t)t.tv_nsec;
}

static uint64_t roll(uint64_t bound)
{
    state ^= state >> 12;
    state ^= state << 25;
    state ^= state >> 27;
    return (state * 0x2545f4914f6cdd1dull >> 11) % bound;
}

static void note(timing *t, uint64_t since)
{
    t->ns[t->count++ % SAMPLES] = (uint32_t)(now() - since);
}

static int compare(const void *a, const void *b)
{
    uint32_t one = *(const uint32_t *)a, two = *(const uint32_t *)b;
    return (one > two) - (one < two);
}

static void print(const char *name, timing *t)
{
    uint64_t n = t->count < SAMPLES ? t->count : SAMPLES;
    qsort(t->ns, n, sizeof *t->ns, compare);
    printf("\"%s\": [%u, %u], ", name, n ? t->ns[n / 2] : 0, n ? t->ns[n * 99 / 100] : 0);
}

static void free_one(asa_pool *p)
{
    uint64_t i = roll(nids), id = ids[i], since = now();
    if (bare)
        asa_give(&p->arena, (uint32_t)id);
    else if (asa_free(p, id) != ASA_OK)
        abort();
    note(bare ? &give : &release, since);
    payload -= sizes[i];
    ids[i] = ids[--nids];
    sizes[i] = sizes[nids];
}

static int put_one(asa_pool *p, const uint8_t *body, uint64_t nbytes)
{
    asa_head head = {.id = next_id};
    uint64_t since = now(), grains = (ASA_HEAD + nbytes + ASA_GRAIN - 1) / ASA_GRAIN;
    int64_t rc = bare ? asa_take(&p->arena, grains) : asa_put(p, &head, body, nbytes);
    if (rc < 0)
        return (int)rc;
    note(bare ? &take : &put, since);
    sizes[nids] = nbytes;
    ids[nids++] = bare ? (uint64_t)rc : next_id++;
    payload += nbytes;
    return ASA_OK;
}

int main(int argc, char **argv)
{
    if (argc != 7)
        return 2;
    bare = strcmp(argv[1], "arena") == 0;
    uint64_t size = strtoull(argv[2], 0, 10), atoms = strtoull(argv[3], 0, 10);
    uint64_t operations = strtoull(argv[4], 0, 10);
    uint64_t low = strtoull(argv[5], 0, 10), high = strtoull(argv[6], 0, 10);
    const uint64_t space[2] = {0, 0};
    uint8_t *body = malloc(high + 8);
    void *base = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    ids = malloc(atoms * sizeof *ids);
    sizes = malloc(atoms * sizeof *sizes);
    asa_pool pool;
    if (body == NULL || ids == NULL || sizes == NULL || base == MAP_FAILED ||
        asa_format(base, size, atoms, 0, space, 0) || asa_pool_open(&pool, base, size, 0))
        return 3;
    memset(body, 1, high + 8);
    double full = 0, least = 1;
    uint64_t fills = 0, refused = 0, most = 0, first_full = 0;
    for (uint64_t n = 0; n < operations; n++) {
        uint64_t nbytes = low + roll(high - low + 1);
        int rc = nids < atoms ? put_one(&pool, body, nbytes) : ASA_NO_CELL;
        if (rc == ASA_OK)
            continue;
        if (rc != ASA_NO_SPACE && rc != ASA_NO_CELL)
            return 4;
        refused++;
        most = nids > most ? nids : most;
        if (first_full == 0)
            first_full = n;
        if (n > operations / 2) { /* the second half: what churn leaves, not what filling gives */
            double now_full = (double)payload / (double)(pool.view.grains * ASA_GRAIN);
            full += now_full;
            least = now_full < least ? now_full : least;
            fills++;
        }
        free_one(&pool);
        n++;
    }
    uint64_t longest = 0, run = 0, tombs = pool.tombs, live = nids;
    for (uint64_t i = 0; i < pool.view.ncells; i++) {
        run = asa_load(&asa_cells(&pool.view)[i]) == ASA_EMPTY ? 0 : run + 1;
        longest = run > longest ? run : longest;
    }
    double whole = size, blocks = (double)(pool.arena.room * sizeof(asa_block));
    printf("{\"utilisation\": %.4f, \"utilisation_min\": %.4f, \"live\": %lu, \"most\": %lu, "
           "\"refused\": %lu, \"tombs\": %lu, \"longest_run\": %lu, \"private_bytes\": %.0f, "
           "\"bytes_an_atom\": %.0f, ", fills ? full / (double)fills : 0.0, least, live, most,
           refused, tombs, longest, blocks + 4.0 * (double)pool.view.ncells,
           whole / (double)(most ? most : 1));
    print("allocate_ns", &take);
    print("give_ns", &give);
    print("put_ns", &put);
    print("free_ns", &release);
    printf("\"operations\": %lu}\n", operations);
    return 0;
}
