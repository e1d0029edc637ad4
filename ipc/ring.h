/* The layout of a segment's header page, and the few primitives that touch shared words.
 *
 * Rule 1: a shared word has one writer, and is touched only through the functions below.
 * Rule 2: what another process may write is loaded once into a local, and only the local is used.
 * Rule 3: every acquire and release names its partner in a SYNC POINT comment; each name stands at
 * both sides. The ring's points are tail, cursor, want and space; progress and crash are for the
 * supervisor.
 */
#ifndef DSEC_RING_H
#define DSEC_RING_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#include "ring.cdef.h"

#if !defined(__BYTE_ORDER__) || __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "segments and journals are little endian; futexes wait on the low half of a 64-bit word"
#endif
_Static_assert(ATOMIC_LLONG_LOCK_FREE == 2, "64-bit atomics must be lock-free to be shared");

#define DSEC_MAGIC 0x31474e4952534453ull /* "SDSRING1" in memory */
#define DSEC_VERSION 1u
#define DSEC_CAPACITY_MAX (1ull << 32) /* so that half a ring fits a record's 32-bit stride */
#define DSEC_AWAKE UINT64_MAX
#define DSEC_NONE UINT64_MAX
#define DSEC_ALL_BITS 0xffffffffu

/* A shared word on its own pair of cache lines: adjacent lines are prefetched together. */
typedef struct {
    _Alignas(128) _Atomic uint64_t value;
} dsec_word;

typedef struct {
    _Alignas(128) uint64_t magic;
    uint32_t version;
    uint32_t role;
    uint32_t epoch;
    uint32_t reserved;
    uint64_t size;
    uint64_t capacity;
    uint64_t start; /* the position at which the ring began; 0 but in tests */
} dsec_ident;

/* What the reading role keeps on one writer's ring. */
typedef struct {
    dsec_word cursor; /* everything below has been given back */
    dsec_word want;   /* wake me when the tail reaches this; DSEC_AWAKE = don't */
} dsec_slot;

typedef struct {
    _Alignas(128) _Atomic uint64_t word; /* phase << 56 | seq */
    _Atomic int64_t since_ns;
} dsec_progress;

/* What a writer counts beside its records, from record `seq` on, for who takes over from it. */
typedef struct {
    _Alignas(64) _Atomic uint64_t seq; /* DSEC_NONE: not whole */
    uint64_t episodes;
    uint64_t lost;
} dsec_tally;

typedef struct {
    _Alignas(128) _Atomic uint32_t written; /* 0 or 1, stored last */
    dsec_crash_info info;
} dsec_crash_area;

typedef struct {
    dsec_ident ident;       /* immutable after dsec_format */
    dsec_word tail;         /* records below are published */
    dsec_word urgent;       /* end of the last record that nobody may sleep through */
    dsec_word space_want;   /* wake me when the cursor reaches this */
    dsec_progress progress;
    dsec_tally tally[2];    /* written in turn: one of the two is whole */
    uint8_t unused[1024 - 6 * 128];
    dsec_slot slot[DSEC_ROLES];
    dsec_crash_area crash;
    uint8_t rest[4096 - 1024 - DSEC_ROLES * 256 - 128];
} dsec_page;

/* A vector's doorbell: written by every env of the vector and by the caller, hence only a hint. */
typedef struct {
    dsec_ident ident;
    dsec_word count; /* records published by all of them together */
    dsec_word want;  /* wake the caller when the count reaches this */
    uint8_t rest[4096 - 3 * 128];
} dsec_group_page;

_Static_assert(sizeof(dsec_head) == DSEC_HEAD, "record header");
_Static_assert(sizeof(dsec_page) == DSEC_PAGE, "header page");
_Static_assert(sizeof(dsec_group_page) == DSEC_PAGE, "group page");
_Static_assert(offsetof(dsec_page, slot) == 1024 && offsetof(dsec_page, crash) == 3072, "page 0");

/* ---- kill points: with DSEC_FAULT every shared store counts, and a test dies after the n-th */
#ifdef DSEC_FAULT
void dsec_fault_point(void);
#define DSEC_POINT() dsec_fault_point()
#else
#define DSEC_POINT() ((void)0)
#endif

static inline uint64_t dsec_load(const dsec_word *w)
{
    return atomic_load_explicit(&w->value, memory_order_relaxed);
}

static inline uint64_t dsec_load_acquire(const dsec_word *w)
{
    return atomic_load_explicit(&w->value, memory_order_acquire);
}

static inline void dsec_store(dsec_word *w, uint64_t value)
{
    atomic_store_explicit(&w->value, value, memory_order_relaxed);
    DSEC_POINT();
}

static inline void dsec_store_release(dsec_word *w, uint64_t value)
{
    atomic_store_explicit(&w->value, value, memory_order_release);
    DSEC_POINT();
}

static inline void dsec_fence(void)
{
    atomic_thread_fence(memory_order_seq_cst);
}

/* Begin to fetch a cache line that is soon to be written, or read. Lines of a ring change sides
 * with every record, at about the price of a call from Python, and the two can overlap. A prefetch
 * never faults, and does nothing where the processor doesn't know it. */
static inline void dsec_expect_write(const void *at)
{
#if defined(__x86_64__)
    __asm__ volatile("prefetchw %0" : : "m"(*(const char *)at));
#else
    __builtin_prefetch(at, 1);
#endif
}

static inline void dsec_expect_read(const void *at)
{
    __builtin_prefetch(at, 0);
}

/* Is position a at or past position b? Positions wrap at 2^64 and are never far apart. */
static inline int dsec_reached(uint64_t a, uint64_t b)
{
    return (int64_t)(a - b) >= 0;
}

static inline int dsec_corrupt(dsec_fault *fault, int what, uint32_t role, uint64_t position,
                               uint64_t found, uint64_t wanted)
{
    fault->what = what;
    fault->role = (int32_t)role;
    fault->position = position;
    fault->found = found;
    fault->wanted = wanted;
    return DSEC_CORRUPT;
}

/* ---- reader.c, for group.c and join.c */
int dsec_look(dsec_reader *r, uint64_t position, uint64_t tail, dsec_record *out);
int dsec_tail(dsec_reader *r, uint64_t position, uint64_t *tail);
int dsec_advance(dsec_reader *r);
int dsec_sleep_for_tail(dsec_reader *r, uint64_t want, int64_t deadline);
int dsec_release_to(dsec_reader *r, uint64_t position);

/* ---- ring.c, for group.c */
int dsec_publish(dsec_outbox *b, uint64_t seq, uint32_t kind, uint32_t flags, uint64_t nbytes);
void dsec_wake_followers(dsec_outbox *b, uint32_t flags);

/* ---- wait.c */
int64_t dsec_now_ns(void);
int64_t dsec_deadline(double timeout_s);
int dsec_interrupted(void);
int dsec_sleep(const dsec_word *word, uint64_t seen, uint32_t bits, int64_t deadline_ns);
void dsec_wake(const dsec_word *word, uint32_t bits);
uint32_t dsec_polls(dsec_patience *p);
int dsec_yield(dsec_patience *p, int64_t deadline_ns);

/* ---- crash.c */
void dsec_crash_forget(const void *page);

#endif
