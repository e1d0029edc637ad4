/* Chunks of planes: what changed from each plane to the next, and bytes for quantised floats.

   Owns the two formats that are decoded in C, because a batch of frames is many of them:

   sparse: `ends` (uint32 for each plane: where its bytes end, counted behind this table), then the
   first plane, the key, then for each other plane tokens: uint16 bytes that stay as they are in the
   plane before, uint16 bytes that change, and those bytes. What follows the last token stays.
   The key is there as it is, or, where that is shorter, as its first row and tokens for the others,
   in which what stays is what is in the row above.

   quantised: `low` and `step` (one for each element), the first plane as it was, and a byte q for
   each element of the others: low + q * step.

   Knows neither Python nor where chunks lie. Chunks are made and read by one process; a token that
   leads out of its plane is told all the same and never followed. */
#include <stdint.h>
#include <string.h>

#include "delta.cdef.h"

#define TOKEN_MAX 65535
#define GAP_MIN 4 /* equal bytes that are worth a token of their own, which takes four */

static uint8_t *put16(uint8_t *out, int64_t value)
{
  uint16_t word = (uint16_t)value;
  memcpy(out, &word, sizeof word);
  return out + sizeof word;
}

static int64_t get16(const uint8_t *at)
{
  uint16_t word;
  memcpy(&word, at, sizeof word);
  return word;
}

/* The first place from `at` on where the two differ; n if nowhere. */
static int64_t differ_from(const uint8_t *a, const uint8_t *b, int64_t at, int64_t n)
{
  while (at + 8 <= n) {
    uint64_t left, right;
    memcpy(&left, a + at, 8);
    memcpy(&right, b + at, 8);
    if (left != right) {
      return at + (__builtin_ctzll(left ^ right) >> 3);
    }
    at += 8;
  }
  while (at < n && a[at] == b[at]) {
    at++;
  }
  return at;
}

/* Where a run of changed bytes that begins at `at` ends: before GAP_MIN equal ones. */
static int64_t run_to(const uint8_t *a, const uint8_t *b, int64_t at, int64_t n)
{
  int64_t end = at + 1, equal = 0;
  for (int64_t i = at + 1; i < n && i - at < TOKEN_MAX; i++) {
    if (a[i] == b[i]) {
      if (++equal == GAP_MIN) {
        break;
      }
    } else {
      equal = 0;
      end = i + 1;
    }
  }
  return end;
}

/* The tokens that make `now` of `before`; NULL if there is no room for them. */
static uint8_t *tokens(const uint8_t *before, const uint8_t *now, int64_t n, uint8_t *out,
                       const uint8_t *limit)
{
  int64_t at = 0;
  for (;;) {
    int64_t start = differ_from(before, now, at, n);
    if (start == n) {
      return out;
    }
    int64_t end = run_to(before, now, start, n);
    while (start - at > TOKEN_MAX) {
      if (limit - out < 4) {
        return NULL;
      }
      out = put16(put16(out, TOKEN_MAX), 0);
      at += TOKEN_MAX;
    }
    if (limit - out < 4 + end - start) {
      return NULL;
    }
    out = put16(put16(out, start - at), end - start);
    memcpy(out, now + start, (size_t)(end - start));
    out += end - start;
    at = end;
  }
}

/* The most that a chunk of planes may take to be worth its format: as they are, and the table. */
int64_t delta_bound(int64_t count, int64_t nbytes)
{
  return count * nbytes + 4 * count;
}

/* The key at `out`, which has room for it as it is; returns where it ends. */
static uint8_t *encode_key(const uint8_t *key, int64_t nbytes, int64_t row, uint8_t *out)
{
  if (row > 0 && row < nbytes) {
    uint8_t *end = tokens(key, key + row, nbytes - row, out + row, out + nbytes - 1);
    if (end) {
      memcpy(out, key, (size_t)row);
      return end;
    }
  }
  memcpy(out, key, (size_t)nbytes);
  return out + nbytes;
}

/* A sparse chunk of these planes, whose rows have `row` bytes (0: they have none); returns its
   size, or -1 if it takes more than `room` bytes. */
int64_t delta_encode(const uint8_t *planes, int64_t count, int64_t nbytes, int64_t row,
                     uint8_t *out, int64_t room)
{
  const uint8_t *limit = out + room;
  uint8_t *body = out + 4 * count, *at = body;
  if (room < 4 * count + nbytes) {
    return -1;
  }
  at = encode_key(planes, nbytes, row, at);
  for (int64_t i = 0; i < count; i++) {
    if (i) {
      at = tokens(planes + (i - 1) * nbytes, planes + i * nbytes, nbytes, at, limit);
      if (!at) {
        return -1;
      }
    }
    uint32_t end = (uint32_t)(at - body);
    memcpy(out + 4 * i, &end, sizeof end);
  }
  return at - out;
}

/* Apply the tokens between `at` and `end`; 0, or -1 if they lead out of the plane. */
static int apply(const uint8_t *at, const uint8_t *end, uint8_t *plane, int64_t nbytes)
{
  int64_t where = 0;
  while (end - at >= 4) {
    int64_t skip = get16(at), run = get16(at + 2);
    at += 4;
    where += skip;
    if (run > nbytes - where || run > end - at) {
      return -1;
    }
    memcpy(plane + where, at, (size_t)run);
    where += run;
    at += run;
  }
  return at == end ? 0 : -1;
}

/* Bytes of a plane that are those of the row above, which is there already. */
static void copy_down(uint8_t *plane, int64_t at, int64_t n, int64_t row)
{
  while (n > 0) {
    int64_t piece = n < row ? n : row;
    memcpy(plane + at, plane + at - row, (size_t)piece);
    at += piece;
    n -= piece;
  }
}

/* The key between `at` and `end`; 0, or -1 if it is malformed. */
static int decode_key(const uint8_t *at, const uint8_t *end, uint8_t *plane, int64_t nbytes,
                      int64_t row)
{
  if (end - at == nbytes) {
    memcpy(plane, at, (size_t)nbytes);
    return 0;
  }
  if (row <= 0 || end - at < row || row > nbytes) {
    return -1;
  }
  memcpy(plane, at, (size_t)row);
  at += row;
  int64_t where = row;
  while (end - at >= 4) {
    int64_t skip = get16(at), run = get16(at + 2);
    at += 4;
    if (skip + run > nbytes - where || run > end - at) {
      return -1;
    }
    copy_down(plane, where, skip, row);
    memcpy(plane + where + skip, at, (size_t)run);
    where += skip + run;
    at += run;
  }
  copy_down(plane, where, nbytes - where, row);
  return at == end ? 0 : -1;
}

static const uint8_t *body_end(const uint8_t *chunk, int64_t count, int64_t slot)
{
  uint32_t end;
  memcpy(&end, chunk + 4 * slot, sizeof end);
  return chunk + 4 * count + end;
}

/* Planes out of chunks of `count`, into the rows of `out` (rows of nbytes). Requests are sorted by
   chunk and then by slot, so that each chunk is walked once.

   chunks: the address of each request's chunk. kinds: DELTA_RAW, planes one behind the other, or
   DELTA_SPARSE. Returns the number of requests that were served: less than all, if a chunk is
   malformed. */
int64_t delta_decode(const uint64_t *chunks, const uint8_t *kinds, const int64_t *slots,
                     const int64_t *rows, int64_t requests, int64_t count, int64_t nbytes,
                     int64_t row, uint8_t *scratch, uint8_t *out)
{
  uint64_t current = 0;
  int64_t reached = 0;
  for (int64_t i = 0; i < requests; i++) {
    const uint8_t *chunk = (const uint8_t *)(uintptr_t)chunks[i], *from;
    if (kinds[i] == DELTA_RAW) {
      from = chunk + slots[i] * nbytes;
    } else {
      if (chunks[i] != current) {
        current = chunks[i];
        reached = 0;
        if (decode_key(chunk + 4 * count, body_end(chunk, count, 0), scratch, nbytes, row)) {
          return i;
        }
      }
      for (; reached < slots[i]; reached++) {
        if (apply(body_end(chunk, count, reached), body_end(chunk, count, reached + 1), scratch,
                  nbytes)) {
          return i;
        }
      }
      from = scratch;
    }
    memcpy(out + rows[i] * nbytes, from, (size_t)nbytes);
  }
  return requests;
}

/* One item of four planes of bytes: the common case, in a form that compilers make vectors of. */
static void interleave_four(const uint8_t *from, int64_t elements, uint8_t *restrict to)
{
  const uint8_t *a = from, *b = a + elements, *c = b + elements, *d = c + elements;
  for (int64_t e = 0; e < elements; e++) {
    to[4 * e] = a[e];
    to[4 * e + 1] = b[e];
    to[4 * e + 2] = c[e];
    to[4 * e + 3] = d[e];
  }
}

/* From `items` groups of `stack` planes to those rows of `out`; a row's last axis is the stack. */
void delta_interleave(const uint8_t *planes, const int64_t *rows, int64_t items, int64_t stack,
                      int64_t elements, int64_t element_bytes, uint8_t *out)
{
  int64_t plane = elements * element_bytes;
  for (int64_t item = 0; item < items; item++) {
    const uint8_t *from = planes + item * stack * plane;
    uint8_t *to = out + rows[item] * stack * plane;
    if (stack == 4 && element_bytes == 1) {
      interleave_four(from, elements, to);
      continue;
    }
    for (int64_t s = 0; s < stack; s++) {
      for (int64_t e = 0; e < elements; e++) {
        memcpy(to + (e * stack + s) * element_bytes, from + s * plane + e * element_bytes,
               (size_t)element_bytes);
      }
    }
  }
}

#define QUANT_DECODE(name, type)                                                                   \
  void name(const uint64_t *chunks, const int64_t *slots, const int64_t *rows, int64_t requests,   \
            int64_t width, type *out)                                                              \
  {                                                                                                \
    for (int64_t i = 0; i < requests; i++) {                                                       \
      const type *low = (const type *)(uintptr_t)chunks[i], *step = low + width;                   \
      const type *key = step + width;                                                              \
      type *to = out + rows[i] * width;                                                            \
      if (!slots[i]) {                                                                             \
        memcpy(to, key, (size_t)width * sizeof(type));                                             \
        continue;                                                                                  \
      }                                                                                            \
      const uint8_t *q = (const uint8_t *)(key + width) + (slots[i] - 1) * width;                  \
      for (int64_t e = 0; e < width; e++) {                                                        \
        to[e] = low[e] + (type)q[e] * step[e];                                                     \
      }                                                                                            \
    }                                                                                              \
  }

QUANT_DECODE(quant_decode32, float)
QUANT_DECODE(quant_decode64, double)
