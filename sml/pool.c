/* The one writer of a pool: format, open what another left, put, free, mark.
 *
 * What is live is said by the cells alone; which grains are free follows from it and is kept in
 * this process (arena.c). A put writes header and body into free grains, where no cell leads, and
 * then stores one cell. A free stores one cell. So there is no instant at which a death leaves more
 * than a hole.
 */
#include <stdlib.h>
#include <string.h>

#include "pool.h"

#define LEASES_MAX ((1ll << 28) - 1)

typedef struct {
    uint64_t grain;
    uint64_t cell;
    uint64_t size;
} placed;

static asa_word *cells_of(const asa_pool *p)
{
    return (asa_word *)(void *)(p->view.base + ASA_PAGE);
}

static asa_page *page_of(const asa_pool *p)
{
    return (asa_page *)(void *)p->view.base;
}

static uint64_t grains_for(uint64_t nbytes)
{
    return asa_round((ASA_HEAD + nbytes + ASA_GRAIN - 1) / ASA_GRAIN);
}

/* Bytes that a body of `nbytes` takes of the data area. */
uint64_t asa_room(uint64_t nbytes)
{
    return grains_for(nbytes) * ASA_GRAIN;
}

/* Lay out a new segment, which reads as zeros. ASA_MISUSE: too small for one atom of one byte. */
int asa_format(void *base, uint64_t size, uint64_t atoms_max, uint32_t flags, const uint64_t *space,
               uint64_t created_s)
{
    if (size / ASA_GRAIN > UINT32_MAX || atoms_max == 0 || atoms_max > size / 16)
        return ASA_MISUSE;
    uint64_t ncells = ASA_CELLS_AN_ATOM * atoms_max;
    uint64_t data = (ASA_PAGE + ncells * ASA_CELL + ASA_GRAIN - 1) / ASA_GRAIN * ASA_GRAIN;
    if (size < 2 * ASA_PAGE || data + ASA_GRAIN > size)
        return ASA_MISUSE;
    asa_page *page = base;
    asa_store(&page->ident.magic, ASA_MAKING);
    asa_ident ident = {.version = ASA_VERSION, .flags = flags, .size = size, .ncells = ncells,
                       .data = data, .grains = (size - data) / ASA_GRAIN, .created_s = created_s,
                       .space = {space[0], space[1]}};
    ident.sum = asa_ident_sum(&ident);
    size_t from = sizeof ident.magic;
    memcpy((uint8_t *)&page->ident + from, (uint8_t *)&ident + from, sizeof ident - from);
    ASA_POINT();
    asa_store(&page->epoch, 0);
    asa_store(&page->generation, 0);
    asa_store(&page->block, 0);
    atomic_store_explicit(&page->ident.magic, ASA_MAGIC, memory_order_release);
    ASA_POINT();
    return ASA_OK;
}

static int by_grain(const void *a, const void *b)
{
    uint64_t one = ((const placed *)a)->grain, two = ((const placed *)b)->grain;
    return (one > two) - (one < two);
}

/* Is what a cell leads to an atom that a search for its id finds in this very cell? */
static int sound(asa_pool *p, uint64_t cell, uint64_t word, int verify, asa_head *head)
{
    asa_found found;
    if (asa_bounds(&p->view, cell, word, head) != ASA_OK)
        return 0;
    if (asa_find(&p->view, head->id, &found) != ASA_OK || found.word != word)
        return 0;
    const uint8_t *body = p->view.base + asa_grain_of(word) * ASA_GRAIN + ASA_HEAD;
    return !verify || asa_sum(head, asa_xxh3(body, head->nbytes)) == head->sum;
}

static void bury(asa_pool *p, uint64_t cell)
{
    asa_store(&cells_of(p)[cell], ASA_TOMB);
    p->tombs++;
}

/* Collect the atoms that the cells lead to; what is damaged is taken out. */
static uint64_t collect(asa_pool *p, placed *list, int verify)
{
    uint64_t count = 0, first = p->view.data / ASA_GRAIN;
    for (uint64_t cell = 0; cell < p->view.ncells; cell++) {
        uint64_t word = asa_load(&cells_of(p)[cell]);
        asa_head head;
        p->tombs += word == ASA_TOMB;
        if (!asa_is_atom(word))
            continue;
        if (!sound(p, cell, word, verify, &head)) {
            bury(p, cell);
            p->dropped++;
            continue;
        }
        if (head.generation > p->generation)
            p->generation = head.generation;
        list[count++] = (placed){asa_grain_of(word) - first, cell, grains_for(head.nbytes)};
        p->payload += head.nbytes;
    }
    return count;
}

/* Rebuild the private bookkeeping from the cells. */
static int rebuild(asa_pool *p, int verify)
{
    placed *list = malloc((p->view.ncells + 1) * sizeof *list);
    if (list == NULL)
        return ASA_NO_MEMORY;
    uint64_t count = collect(p, list, verify), end = 0;
    qsort(list, count, sizeof *list, by_grain);
    for (uint64_t i = 0; i < count; i++) {
        asa_head head;
        if (list[i].grain < end || list[i].grain + list[i].size > p->view.grains) {
            uint64_t word = asa_load(&cells_of(p)[list[i].cell]);
            if (asa_bounds(&p->view, list[i].cell, word, &head) == ASA_OK)
                p->payload -= head.nbytes;
            bury(p, list[i].cell);
            p->dropped++;
            continue;
        }
        int64_t block = asa_take_at(&p->arena, list[i].grain, list[i].size);
        if (block < 0) {
            free(list);
            return (int)block;
        }
        end = list[i].grain + list[i].size;
        p->block_of[list[i].cell] = (uint32_t)block;
        p->live++;
    }
    free(list);
    return ASA_OK;
}

/* Become the writer of a formatted segment. Atoms that are damaged (with `verify` their checksums
 * are looked at, too) are counted in p->dropped and taken out; all others are there. */
int asa_pool_open(asa_pool *p, void *base, uint64_t size, int verify)
{
    memset(p, 0, sizeof *p);
    int rc = asa_view_open(&p->view, base, size);
    if (rc != ASA_OK) {
        p->fault = p->view.fault;
        return rc;
    }
    rc = asa_arena_open(&p->arena, p->view.grains);
    p->block_of = malloc(p->view.ncells * sizeof *p->block_of);
    if (rc == ASA_OK && p->block_of == NULL)
        rc = ASA_NO_MEMORY;
    if (rc == ASA_OK) {
        memset(p->block_of, 0xff, p->view.ncells * sizeof *p->block_of);
        p->generation = asa_load(&page_of(p)->generation);
        rc = rebuild(p, verify);
    }
    if (rc != ASA_OK) {
        asa_pool_close(p);
        return rc;
    }
    asa_store(&page_of(p)->epoch, asa_load(&page_of(p)->epoch) + 1);
    p->view.epoch = (uint32_t)asa_load(&page_of(p)->epoch);
    return ASA_OK;
}

void asa_pool_close(asa_pool *p)
{
    asa_arena_close(&p->arena);
    free(p->block_of);
    p->block_of = NULL;
    p->view.base = NULL;
}

static void write_body(uint8_t *at, const asa_head *head, const uint8_t *data)
{
    /* SYNC POINT recycle: pairs with unchanged() in view.c: the cells that led here were stored
     * before, and whoever sees a byte from below sees them changed. */
    atomic_thread_fence(memory_order_release);
    asa_word *word = (asa_word *)(void *)at;
    uint64_t words[ASA_HEAD / 8], nbytes = head->nbytes;
    memcpy(words, head, ASA_HEAD);
    for (int i = 0; i < ASA_HEAD / 8; i++)
        asa_store(word++, words[i]);
    for (; nbytes >= 8; nbytes -= 8, data += 8) {
        uint64_t value;
        memcpy(&value, data, 8);
        asa_store(word++, value);
    }
    if (nbytes) {
        uint64_t value = 0;
        memcpy(&value, data, nbytes);
        asa_store(word, value);
    }
}

/* The cell where a new id goes: the first on its way that holds no atom. ASA_EXISTS if it does. */
static int64_t free_cell(asa_pool *p, uint64_t id)
{
    uint64_t mixed = asa_mix(id), at = asa_home(mixed, p->view.ncells);
    int64_t found = ASA_NO_CELL;
    for (uint64_t n = 0; n < p->view.ncells; n++, at = at + 1 == p->view.ncells ? 0 : at + 1) {
        uint64_t word = asa_load(&cells_of(p)[at]);
        if (!asa_is_atom(word)) {
            if (found < 0)
                found = (int64_t)at;
            if (word == ASA_EMPTY)
                break;
            continue;
        }
        asa_head head;
        if (asa_tag_of(word) == (mixed & 0xffff) &&
            asa_bounds(&p->view, at, word, &head) == ASA_OK && head.id == id)
            return ASA_EXISTS;
    }
    return found;
}

/* Store an atom and publish it. `meta` has its id and whose it is; sum, nbytes and generation are
 * filled in. One of seven things happens: ASA_OK; ASA_EXISTS; ASA_NO_SPACE; ASA_NO_CELL;
 * ASA_TOO_LARGE; ASA_NO_MEMORY; ASA_MISUSE. Only after ASA_OK has anything changed. */
int asa_put(asa_pool *p, const asa_head *meta, const void *data, uint64_t nbytes)
{
    if (p->view.base == NULL || nbytes == 0)
        return ASA_MISUSE;
    if (nbytes > UINT32_MAX || grains_for(nbytes) > p->view.grains)
        return ASA_TOO_LARGE;
    int64_t cell = free_cell(p, meta->id);
    if (cell < 0)
        return (int)cell;
    if (p->live >= p->view.ncells / ASA_CELLS_AN_ATOM)
        return ASA_NO_CELL;
    int64_t block = asa_take(&p->arena, grains_for(nbytes));
    if (block < 0)
        return (int)block;
    asa_head head = *meta;
    head.nbytes = (uint32_t)nbytes;
    head.generation = (uint32_t)++p->generation;
    head.sum = asa_sum(&head, asa_xxh3(data, nbytes));
    asa_store(&page_of(p)->generation, p->generation);
    uint64_t grain = p->view.data / ASA_GRAIN + p->arena.block[block].at;
    write_body(p->view.base + grain * ASA_GRAIN, &head, data);
    asa_word *at = &cells_of(p)[cell];
    p->tombs -= asa_load(at) == ASA_TOMB;
    /* SYNC POINT publish: pairs with acquire_cell() in view.c: the body is there before the cell
     * that leads to it. */
    atomic_store_explicit(at, asa_pack(grain, (uint32_t)asa_mix(head.id), head.generation, 0),
                          memory_order_release);
    ASA_POINT();
    p->block_of[cell] = (uint32_t)block;
    p->live++;
    p->payload += nbytes;
    return ASA_OK;
}

/* A tomb before an empty cell keeps no search going: make such ones empty, so that there are never
 * many. Nobody's way leads past them, so a reader can't miss an atom by it. */
static void sweep(asa_pool *p, uint64_t cell)
{
    asa_word *cells = cells_of(p);
    uint64_t last = p->view.ncells - 1;
    if (asa_load(&cells[cell == last ? 0 : cell + 1]) != ASA_EMPTY)
        return;
    while (asa_load(&cells[cell]) == ASA_TOMB) {
        asa_store(&cells[cell], ASA_EMPTY);
        p->tombs--;
        cell = cell ? cell - 1 : last;
    }
}

/* Find an atom of which this process knows, too: a cell that somebody else stored leads nowhere. */
static int own(asa_pool *p, uint64_t id, asa_found *found)
{
    int rc = asa_find(&p->view, id, found);
    if (rc == ASA_CORRUPT)
        p->fault = p->view.fault;
    if (rc != ASA_OK || p->block_of[found->cell] != ASA_NONE)
        return rc;
    return asa_fail(&p->fault, ASA_BAD_CELL, found->cell, found->word, ASA_TOMB);
}

/* Take an atom away. Its bytes may be reused by the next put. */
int asa_free(asa_pool *p, uint64_t id)
{
    asa_found found;
    int rc = own(p, id, &found);
    if (rc != ASA_OK)
        return rc;
    bury(p, found.cell);
    sweep(p, found.cell);
    asa_give(&p->arena, p->block_of[found.cell]);
    p->block_of[found.cell] = ASA_NONE;
    p->live--;
    p->payload -= found.head.nbytes;
    return ASA_OK;
}

/* Set an atom's marks, ASA_PINNED and ASA_STANDBY, to exactly these. */
int asa_mark(asa_pool *p, uint64_t id, uint32_t marks)
{
    asa_found found;
    if (marks > (ASA_PINNED | ASA_STANDBY))
        return ASA_MISUSE;
    int rc = own(p, id, &found);
    if (rc == ASA_OK)
        asa_store(&cells_of(p)[found.cell],
                  (found.word & ~(3ull << 62)) | (uint64_t)marks << 62);
    return rc;
}

/* The number of a block of ids that nobody else ever gets from this segment, or ASA_MISUSE. */
int64_t asa_lease(asa_pool *p)
{
    if (p->view.base == NULL)
        return ASA_MISUSE;
    uint64_t block = asa_load(&page_of(p)->block);
    if (block >= LEASES_MAX)
        return ASA_MISUSE;
    asa_store(&page_of(p)->block, block + 1);
    return (int64_t)block;
}
