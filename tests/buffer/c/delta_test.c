/* The C of the trajectory buffer under sanitizers: round trips, and chunks with changed tokens.

   Every array is allocated at its exact size, so that a byte read or written beside it is found. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "delta.cdef.h"

static uint64_t state = 88172645463325252ull;

static uint64_t draw(uint64_t below)
{
  state ^= state << 13;
  state ^= state >> 7;
  state ^= state << 17;
  return state % below;
}

/* All planes of a chunk, in a row; how many were decoded. */
static int64_t decode(const uint8_t *chunk, int64_t count, int64_t nbytes, int64_t row,
                      uint8_t *out)
{
  uint64_t *chunks = malloc((size_t)count * 8);
  int64_t *slots = malloc((size_t)count * 8);
  uint8_t *kinds = malloc((size_t)count), *scratch = malloc((size_t)nbytes);
  for (int64_t i = 0; i < count; i++) {
    chunks[i] = (uint64_t)(uintptr_t)chunk;
    kinds[i] = DELTA_SPARSE;
    slots[i] = i;
  }
  int64_t done =
    delta_decode(chunks, kinds, slots, slots, count, count, nbytes, row, scratch, out);
  free(chunks);
  free(slots);
  free(kinds);
  free(scratch);
  return done;
}

static int one(void)
{
  int64_t count = 2 + (int64_t)draw(6), nbytes = 1 + (int64_t)draw(draw(8) ? 600 : 150000);
  int64_t row = (int64_t)draw((uint64_t)nbytes + 1), size = count * nbytes;
  uint8_t *planes = calloc(1, (size_t)size), *out = malloc((size_t)size);
  for (int64_t i = 0; i < count; i++) {
    if (i) {
      memcpy(planes + i * nbytes, planes + (i - 1) * nbytes, (size_t)nbytes);
    }
    for (uint64_t n = draw(1 + (uint64_t)nbytes / 4); n; n--) {
      planes[i * nbytes + (int64_t)draw((uint64_t)nbytes)] = (uint8_t)draw(256);
    }
  }
  int64_t room = delta_bound(count, nbytes) + (int64_t)draw(64);
  uint8_t *buffer = malloc((size_t)room);
  int64_t took = delta_encode(planes, count, nbytes, row, buffer, room);
  int failed = 0;
  if (took > 0) {
    uint8_t *chunk = malloc((size_t)took);
    memcpy(chunk, buffer, (size_t)took);
    failed = decode(chunk, count, nbytes, row, out) != count || memcmp(out, planes, (size_t)size);
    for (int64_t at = 4 * count; at < took && !failed; at += 1 + (int64_t)draw(40)) {
      chunk[at] = (uint8_t)draw(256); /* a token that may lead anywhere */
    }
    decode(chunk, count, nbytes, row, out);
    free(chunk);
  }
  free(planes);
  free(out);
  free(buffer);
  return failed;
}

int main(void)
{
  for (int i = 0; i < 4000; i++) {
    if (one()) {
      printf("round trip %d failed\n", i);
      return 1;
    }
  }
  printf("4,000 chunks came back, and none led out of its memory when its tokens were changed\n");
  return 0;
}
