/* What Python sees of delta.c; both the C source and cffi read this file. */
enum { DELTA_RAW = 0, DELTA_SPARSE = 1 };

int64_t delta_bound(int64_t count, int64_t nbytes);
int64_t delta_encode(const uint8_t *planes, int64_t count, int64_t nbytes, int64_t row,
                     uint8_t *out, int64_t room);
int64_t delta_decode(const uint64_t *chunks, const uint8_t *kinds, const int64_t *slots,
                     const int64_t *rows, int64_t requests, int64_t count, int64_t nbytes,
                     int64_t row, uint8_t *scratch, uint8_t *out);
void delta_interleave(const uint8_t *planes, const int64_t *rows, int64_t items, int64_t stack,
                      int64_t elements, int64_t element_bytes, uint8_t *out);
void quant_decode32(const uint64_t *chunks, const int64_t *slots, const int64_t *rows,
                    int64_t requests, int64_t width, float *out);
void quant_decode64(const uint64_t *chunks, const int64_t *slots, const int64_t *rows,
                    int64_t requests, int64_t width, double *out);
