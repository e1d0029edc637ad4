/* What the C tests of the ring share: segments on memfds, a seeded generator, payload patterns.
 *
 * CHECK stays on in every build and says where it failed. */
#ifndef DSEC_TEST_COMMON_H
#define DSEC_TEST_COMMON_H

#define _GNU_SOURCE
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "ring.h"

#define CHECK(condition)                                                             \
    do {                                                                             \
        if (!(condition)) {                                                          \
            fprintf(stderr, "%s:%d: failed: %s\n", __FILE__, __LINE__, #condition);  \
            abort();                                                                 \
        }                                                                            \
    } while (0)

enum { ROLE_ENV, ROLE_POLICY, ROLE_REWARD, ROLE_RECORDER };

typedef struct {
    uint8_t *base;
    uint64_t size;
    uint32_t role;
} test_segment;

static inline test_segment segment_make(uint32_t role, uint64_t capacity, uint64_t start)
{
    test_segment s = {.size = DSEC_PAGE + capacity, .role = role};
    int fd = memfd_create("dsec-test", MFD_CLOEXEC);
    CHECK(fd >= 0 && ftruncate(fd, (off_t)s.size) == 0);
    s.base = dsec_map(fd, s.size, 1);
    CHECK(s.base != NULL);
    close(fd);
    CHECK(dsec_format(s.base, s.size, role, 1, start) == DSEC_OK);
    return s;
}

static inline void segment_free(test_segment *s)
{
    dsec_unmap(s->size, s->base);
    s->base = NULL;
}

static inline void outbox_open(dsec_outbox *b, const test_segment *s)
{
    CHECK(dsec_outbox_open(b, s->base, s->size, s->role, -1) == DSEC_OK);
}

static inline void peer_open(dsec_peer *p, const test_segment *s)
{
    dsec_fault fault;
    CHECK(dsec_peer_open(p, s->base, s->size, s->role, &fault) == DSEC_OK);
}

/* xorshift64*: the same sequence for the same seed everywhere. */
static inline uint64_t roll(uint64_t *state)
{
    uint64_t x = *state;
    x ^= x >> 12;
    x ^= x << 25;
    x ^= x >> 27;
    *state = x;
    return x * 0x2545f4914f6cdd1dull;
}

static inline uint64_t roll_below(uint64_t *state, uint64_t bound)
{
    return roll(state) % bound;
}

static inline uint8_t pattern(uint64_t seq, uint64_t i)
{
    return (uint8_t)(seq * 131 + i * 7 + (i >> 8));
}

static inline void fill(uint8_t *at, uint64_t seq, uint64_t nbytes)
{
    for (uint64_t i = 0; i < nbytes; i++)
        at[i] = pattern(seq, i);
}

static inline int intact(const uint8_t *at, uint64_t seq, uint64_t nbytes)
{
    for (uint64_t i = 0; i < nbytes; i++)
        if (at[i] != pattern(seq, i))
            return 0;
    return 1;
}

#endif
