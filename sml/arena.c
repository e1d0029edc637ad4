/* Which grains of the data area are free: segregated lists of blocks, joined with their neighbours.
 *
 * Private to the writer's process. It is never in the segment, so a death can't leave it half done:
 * pool.c builds it anew from the cells. It knows nothing of atoms. Sizes are rounded up to classes
 * of a thirty-second of their power of two, so that what one atom leaves fits the next of its kind.
 * Taking and giving are a constant number of steps.
 */
#include <stdlib.h>
#include <string.h>

#include "pool.h"

#define FINE 32u /* classes to a power of two; below twice this many grains each size is one */
#define FINE_BITS 5

static uint32_t log2_of(uint64_t value)
{
    return 63 - (uint32_t)__builtin_clzll(value);
}

/* The class of a free block: the greatest whose size is not above the block's. */
uint32_t asa_class(uint64_t grains)
{
    if (grains < FINE)
        return (uint32_t)grains;
    uint32_t power = log2_of(grains);
    uint32_t fine = (uint32_t)(grains >> (power - FINE_BITS)) & (FINE - 1);
    return (power - FINE_BITS + 1) * FINE + fine;
}

/* The size that a request of `grains` takes. */
uint64_t asa_round(uint64_t grains)
{
    if (grains < 2 * FINE)
        return grains ? grains : 1;
    uint64_t step = 1ull << (log2_of(grains) - FINE_BITS);
    return (grains + step - 1) & ~(step - 1);
}

static void link_free(asa_arena *a, uint32_t index)
{
    asa_block *b = &a->block[index];
    uint32_t class = asa_class(b->size);
    b->live = 0;
    b->left = ASA_NONE;
    b->right = a->list[class];
    if (b->right != ASA_NONE)
        a->block[b->right].left = index;
    a->list[class] = index;
    a->filled[class / 64] |= 1ull << class % 64;
}

static void unlink_free(asa_arena *a, uint32_t index)
{
    asa_block *b = &a->block[index];
    uint32_t class = asa_class(b->size);
    if (b->right != ASA_NONE)
        a->block[b->right].left = b->left;
    if (b->left != ASA_NONE) {
        a->block[b->left].right = b->right;
        return;
    }
    a->list[class] = b->right;
    if (b->right == ASA_NONE)
        a->filled[class / 64] &= ~(1ull << class % 64);
}

/* A block that describes nothing yet; ASA_NONE if this process has no memory. */
static uint32_t new_block(asa_arena *a)
{
    uint32_t index = a->spare;
    if (index != ASA_NONE) {
        a->spare = a->block[index].right;
        return index;
    }
    if (a->nblocks == a->room) {
        uint64_t room = a->room ? 2ull * a->room : 1024;
        asa_block *more = room < ASA_NONE ? realloc(a->block, room * sizeof *more) : NULL;
        if (more == NULL)
            return ASA_NONE;
        a->block = more;
        a->room = (uint32_t)room;
    }
    return a->nblocks++;
}

static void drop_block(asa_arena *a, uint32_t index)
{
    a->block[index].right = a->spare;
    a->spare = index;
}

/* Split off what block `index` has beyond `grains`, as a block of its own behind it. The rest is in
 * no list. Returns it, or ASA_NONE if there is no memory to describe it. */
static uint32_t split(asa_arena *a, uint32_t index, uint64_t grains)
{
    uint32_t rest = new_block(a);
    if (rest == ASA_NONE)
        return ASA_NONE;
    asa_block *b = &a->block[index], *r = &a->block[rest];
    r->at = b->at + (uint32_t)grains;
    r->size = b->size - (uint32_t)grains;
    r->before = index;
    r->after = b->after;
    r->live = 0;
    if (r->after != ASA_NONE)
        a->block[r->after].before = rest;
    else
        a->tail = rest;
    b->after = rest;
    b->size = (uint32_t)grains;
    return rest;
}

/* Begin with one free block. Returns ASA_NO_MEMORY or ASA_MISUSE where that can't be. */
int asa_arena_open(asa_arena *a, uint64_t grains)
{
    memset(a, 0, sizeof *a);
    memset(a->list, 0xff, sizeof a->list);
    a->spare = ASA_NONE;
    if (grains == 0 || grains >= UINT32_MAX)
        return ASA_MISUSE;
    uint32_t first = new_block(a);
    if (first == ASA_NONE)
        return ASA_NO_MEMORY;
    a->block[first] = (asa_block){.size = (uint32_t)grains, .before = ASA_NONE, .after = ASA_NONE};
    a->grains = grains;
    a->tail = first;
    link_free(a, first);
    return ASA_OK;
}

void asa_arena_close(asa_arena *a)
{
    free(a->block);
    a->block = NULL;
    a->nblocks = a->room = 0;
}

/* A free block that holds `size` grains, which asa_round gave; ASA_NONE if there is none. */
static uint32_t search(const asa_arena *a, uint64_t size)
{
    uint32_t class = asa_class(size);
    uint64_t bits = a->filled[class / 64] & ~0ull << class % 64;
    for (uint32_t word = class / 64;; bits = a->filled[word]) {
        if (bits)
            return a->list[word * 64 + (uint32_t)__builtin_ctzll(bits)];
        if (++word == 16)
            return ASA_NONE;
    }
}

/* Take a block for `grains`. Returns its index, ASA_NO_SPACE or ASA_NO_MEMORY. */
int64_t asa_take(asa_arena *a, uint64_t grains)
{
    uint64_t size = asa_round(grains);
    if (size > a->grains)
        return ASA_NO_SPACE;
    uint32_t index = search(a, size);
    if (index == ASA_NONE)
        return ASA_NO_SPACE;
    unlink_free(a, index);
    if (a->block[index].size > size) {
        uint32_t rest = split(a, index, size);
        if (rest == ASA_NONE) {
            link_free(a, index);
            return ASA_NO_MEMORY;
        }
        link_free(a, rest);
    }
    a->block[index].live = 1;
    a->used += size;
    return index;
}

/* Take away block `index`, whose grains now belong to the block before it. */
static void absorb(asa_arena *a, uint32_t into, uint32_t index)
{
    asa_block *b = &a->block[into], *gone = &a->block[index];
    b->size += gone->size;
    b->after = gone->after;
    if (b->after != ASA_NONE)
        a->block[b->after].before = into;
    else
        a->tail = into;
    drop_block(a, index);
}

/* Give a live block back. */
void asa_give(asa_arena *a, uint32_t index)
{
    asa_block *b = &a->block[index];
    uint32_t before = b->before, after = b->after;
    a->used -= b->size;
    if (after != ASA_NONE && !a->block[after].live) {
        unlink_free(a, after);
        absorb(a, index, after);
    }
    if (before != ASA_NONE && !a->block[before].live) {
        unlink_free(a, before);
        absorb(a, before, index);
        index = before;
    }
    link_free(a, index);
}

/* Take exactly the grains from `at` on, which must lie at or behind the last live block: how pool.c
 * builds the arena from atoms in the order of their places. Returns the block or ASA_NO_MEMORY. */
int64_t asa_take_at(asa_arena *a, uint64_t at, uint64_t size)
{
    uint32_t index = a->tail;
    unlink_free(a, index);
    if (at > a->block[index].at) {
        uint32_t rest = split(a, index, at - a->block[index].at);
        link_free(a, index);
        if (rest == ASA_NONE)
            return ASA_NO_MEMORY;
        index = rest;
    }
    if (a->block[index].size > size) {
        uint32_t rest = split(a, index, size);
        if (rest == ASA_NONE)
            return ASA_NO_MEMORY;
        link_free(a, rest);
    }
    a->block[index].live = 1;
    a->used += size;
    return index;
}

/* For tests: do the blocks cover the area once, joined, each free one in its list? */
int asa_arena_check(const asa_arena *a)
{
    uint64_t at = 0, used = 0, unlisted = 0;
    uint32_t first = a->tail, before = ASA_NONE;
    while (a->block[first].before != ASA_NONE)
        first = a->block[first].before;
    for (uint32_t i = first; i != ASA_NONE; before = i, i = a->block[i].after) {
        const asa_block *b = &a->block[i];
        if (b->at != at || b->size == 0 || b->before != before)
            return ASA_CORRUPT;
        if (!b->live && before != ASA_NONE && !a->block[before].live)
            return ASA_CORRUPT;
        at += b->size;
        used += b->live ? b->size : 0;
        unlisted += !b->live;
    }
    for (uint32_t class = 0; class < 1024; class++) {
        if ((a->list[class] != ASA_NONE) != (a->filled[class / 64] >> class % 64 & 1))
            return ASA_CORRUPT;
        for (uint32_t i = a->list[class]; i != ASA_NONE; i = a->block[i].right, unlisted--)
            if (a->block[i].live || asa_class(a->block[i].size) != class || unlisted == 0)
                return ASA_CORRUPT;
    }
    return at == a->grains && used == a->used && unlisted == 0 ? ASA_OK : ASA_CORRUPT;
}
