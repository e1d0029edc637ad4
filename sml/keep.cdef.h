/* What Python sees of keep.c: the writing side of a memory file of snapshots (failover/keep.py). */

typedef struct {
    uint8_t *file;       /* slots of `slot` bytes each */
    uint8_t *scratch;    /* of one slot */
    uint64_t slot;
    uint64_t generation; /* of the latest snapshot */
    uint64_t written[2]; /* ordinary ones, and those at boundaries */
    uint32_t slots;
    uint32_t ordinary;   /* slots that are not for boundaries only, where there are more */
    uint8_t codec[16];
} asa_kept;

typedef struct {
    uint64_t seq;
    uint64_t own;
    uint64_t first;
    uint64_t second;
    uint64_t counted;
    uint32_t interval;
    uint32_t flags; /* 1 boundary | faith << 8 | beside << 16 */
} asa_spot;

int asa_keep(asa_kept *k, const asa_spot *at, uint32_t parts, const uint8_t *body, uint64_t nbytes);
