/* The layout of a pool's segment, and the few primitives that touch its shared words.
 *
 * Rule 1: the segment has one writer. Readers map it read-only and believe nothing they find: every
 * value is loaded once into a local, bounded, and proven by the checksum over the private copy.
 * Rule 2: bodies are written out of place, and one 8-byte store of a cell publishes, marks or takes
 * away an atom. Nothing else in the segment says what is live, so a writer that dies at any store
 * leaves the atoms that it had published, whole, and free space.
 * Rule 3: every acquire and release names its partner in a SYNC POINT comment. The pool's points
 * are publish and recycle.
 *
 *     page 0            cells, 8 bytes each                 data, in grains of 64 bytes
 *     ident | words     word: grain, tag, generation, marks header | body, header | body, ...
 */
#ifndef ASA_POOL_H
#define ASA_POOL_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#include "pool.cdef.h"

#include "chain.cdef.h"

#include "keep.cdef.h"

#if !defined(__BYTE_ORDER__) || __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "segments are little endian"
#endif
_Static_assert(ATOMIC_LLONG_LOCK_FREE == 2, "64-bit atomics must be lock-free to be shared");

#define ASA_MAGIC 0x4c4f4f5041534144ull /* "DASAPOOL" in memory */
#define ASA_MAKING 0x474e494b414d4144ull /* "DAMAKING": being made, or its maker died */
#define ASA_VERSION 1u
#define ASA_NONE UINT32_MAX
#define ASA_EMPTY 0ull /* a cell that never held an atom since its neighbours changed */
#define ASA_TOMB 1ull  /* a cell that held one: a search goes on past it */

typedef _Atomic uint64_t asa_word;

/* Immutable after asa_format. */
typedef struct {
    asa_word magic; /* stored last */
    uint32_t version;
    uint32_t flags;
    uint64_t size;
    uint64_t ncells;
    uint64_t data;
    uint64_t grains;
    uint64_t space[2];
    uint64_t created_s;
    uint64_t sum; /* over all above but the magic */
} asa_ident;

typedef struct {
    _Alignas(128) asa_ident ident;
    _Alignas(128) asa_word epoch; /* counts the writers */
    asa_word generation;          /* counts what they wrote */
    asa_word block;               /* the next block of ids to be leased */
    _Alignas(128) uint8_t rest[4096 - 256];
} asa_page;

_Static_assert(sizeof(asa_page) == ASA_PAGE, "header page");
_Static_assert(sizeof(asa_head) == ASA_HEAD && ASA_HEAD % 8 == 0, "atom header");
_Static_assert(ASA_HEAD + ASA_CELLS_AN_ATOM * ASA_CELL <= 64, "metadata of an atom");

/* ---- kill points: with ASA_FAULT every shared store counts, and a test dies after the n-th */
#ifdef ASA_FAULT
void asa_fault_point(void);
#define ASA_POINT() asa_fault_point()
#else
#define ASA_POINT() ((void)0)
#endif

static inline void asa_store(asa_word *at, uint64_t value)
{
    atomic_store_explicit(at, value, memory_order_relaxed);
    ASA_POINT();
}

static inline uint64_t asa_load(const asa_word *at)
{
    return atomic_load_explicit(at, memory_order_relaxed);
}

/* A cell's word: grain 32 | tag 16 | generation 14 | marks 2. Grains count from the segment's
 * start, so that no word is 0 or 1. */
static inline uint64_t asa_pack(uint64_t grain, uint32_t tag, uint32_t generation, uint32_t marks)
{
    return grain | (uint64_t)(tag & 0xffff) << 32 | (uint64_t)(generation & 0x3fff) << 48 |
           (uint64_t)(marks & 3) << 62;
}

static inline uint64_t asa_grain_of(uint64_t word)
{
    return word & 0xffffffffu;
}

static inline uint32_t asa_tag_of(uint64_t word)
{
    return (uint32_t)(word >> 32) & 0xffff;
}

static inline uint32_t asa_generation_of(uint64_t word)
{
    return (uint32_t)(word >> 48) & 0x3fff;
}

static inline uint32_t asa_marks_of(uint64_t word)
{
    return (uint32_t)(word >> 62);
}

static inline int asa_is_atom(uint64_t word)
{
    return word != ASA_EMPTY && word != ASA_TOMB;
}

/* The finaliser of splitmix64: consecutive ids land far apart. */
static inline uint64_t asa_mix(uint64_t id)
{
    id = (id ^ (id >> 30)) * 0xbf58476d1ce4e5b9ull;
    id = (id ^ (id >> 27)) * 0x94d049bb133111ebull;
    return id ^ (id >> 31);
}

static inline uint64_t asa_home(uint64_t mixed, uint64_t ncells)
{
    return (uint64_t)(((unsigned __int128)mixed * ncells) >> 64);
}

static inline int asa_fail(asa_fault *fault, int what, uint64_t cell, uint64_t found,
                           uint64_t wanted)
{
    fault->what = what;
    fault->cell = cell;
    fault->found = found;
    fault->wanted = wanted;
    return ASA_CORRUPT;
}

static inline const asa_word *asa_cells(const asa_view *v)
{
    return (const asa_word *)(const void *)(v->base + ASA_PAGE);
}

/* ---- view.c, for pool.c */
uint64_t asa_sum(const asa_head *head, uint64_t body_sum);
uint64_t asa_ident_sum(const asa_ident *ident);
int asa_bounds(asa_view *v, uint64_t cell, uint64_t word, asa_head *head);

/* ---- arena.c, for pool.c */
int64_t asa_take_at(asa_arena *a, uint64_t at, uint64_t size);

#endif
