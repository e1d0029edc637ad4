/* How long a record is: the one rule that a ring, a journal and the hash chain share. Include
 * ring.cdef.h before. */
#ifndef DSEC_RECORD_H
#define DSEC_RECORD_H

#include <stdint.h>

/* Bytes that a record with this payload takes. Above 4 KiB it is rounded to an eighth of the power
 * of two below it, so that few distinct offsets occur and views of them can be kept. */
static inline uint64_t dsec_record_stride(uint64_t nbytes)
{
    uint64_t n = (nbytes + DSEC_HEAD + DSEC_GRAIN - 1) & ~(uint64_t)(DSEC_GRAIN - 1);
    if (n <= 4096)
        return n;
    uint64_t grain = (1ull << (63 - __builtin_clzll(n))) >> 3;
    return (n + grain - 1) & ~(grain - 1);
}

#endif
