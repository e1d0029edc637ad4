/* What the C tests of the pool share: segments in shared memory, a seeded generator, bodies whose
 * every byte follows from the atom's id and version.
 *
 * CHECK stays on in every build and says where it failed. */
#ifndef ASA_TEST_COMMON_H
#define ASA_TEST_COMMON_H

#define _GNU_SOURCE
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "pool.h"

#define CHECK(condition)                                                             \
    do {                                                                             \
        if (!(condition)) {                                                          \
            fprintf(stderr, "%s:%d: failed: %s\n", __FILE__, __LINE__, #condition);  \
            abort();                                                                 \
        }                                                                            \
    } while (0)

static inline void *segment_make(uint64_t size)
{
    void *base = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(base != MAP_FAILED);
    return base;
}

static inline void *pool_make(uint64_t size, uint64_t atoms_max)
{
    static const uint64_t space[2] = {1, 2};
    void *base = segment_make(size);
    CHECK(asa_format(base, size, atoms_max, 0, space, 1) == ASA_OK);
    return base;
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

/* A body says whose it is in its first 16 bytes (if it has so many), and all the rest follows. */
static inline void fill(uint8_t *at, uint64_t id, uint64_t version, uint64_t nbytes)
{
    uint64_t state = id * 0x9e3779b97f4a7c15ull + version + 1;
    for (uint64_t i = 0; i < nbytes; i += 8) {
        uint64_t word = i == 0 ? id : i == 8 ? version : roll(&state);
        memcpy(at + i, &word, nbytes - i < 8 ? nbytes - i : 8);
    }
}

static inline int intact(const uint8_t *at, uint64_t id, uint64_t version, uint64_t nbytes)
{
    uint64_t state = id * 0x9e3779b97f4a7c15ull + version + 1;
    for (uint64_t i = 0; i < nbytes; i += 8) {
        uint64_t word = i == 0 ? id : i == 8 ? version : roll(&state);
        if (memcmp(at + i, &word, nbytes - i < 8 ? nbytes - i : 8) != 0)
            return 0;
    }
    return 1;
}

#endif
