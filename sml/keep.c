/* Writing a snapshot into its slot of a memory file, whose format failover/keep.py describes.
 *
 * It is done some hundred times a second between two steps of an environment, where each line of
 * Python costs what ten of C do. The slot is the older of two (of those at boundaries: the oldest),
 * so what a writer doesn't finish is found out by its checksum, and the one before it is whole.
 */
#include <string.h>

#include "pool.h"

#define PROVEN 120u /* bytes of the header that the checksum is of */

typedef struct {
    uint8_t magic[4];
    uint32_t parts;
    uint64_t total, generation;
    uint64_t seq, own, first, second, counted;
    uint64_t slots;
    uint32_t interval, flags;
    uint8_t codec[16];
    uint8_t zero[24];
    uint64_t checksum;
} header;

_Static_assert(sizeof(header) == PROVEN + 8, "the header has 128 bytes");

/* Write the lengths of `parts` parts, and the parts: `body`. Returns 0, or -1 for want of room. */
int asa_keep(asa_kept *k, const asa_spot *at, uint32_t parts, const uint8_t *body, uint64_t nbytes)
{
    if (nbytes > k->slot - sizeof(header))
        return -1;
    uint32_t apart = (at->flags & 1) && k->slots > k->ordinary;
    uint64_t count = apart ? k->slots - k->ordinary : k->ordinary;
    uint64_t place = (apart ? k->ordinary : 0) + k->written[apart]++ % count;
    header head = {
        .magic = "DSKP", .parts = parts, .total = sizeof(header) + nbytes,
        .generation = ++k->generation, .seq = at->seq, .own = at->own, .first = at->first,
        .second = at->second, .counted = at->counted, .slots = k->slots,
        .interval = at->interval, .flags = at->flags,
    };
    memcpy(head.codec, k->codec, sizeof head.codec);
    memcpy(k->scratch, &head, PROVEN);
    memcpy(k->scratch + PROVEN, body, nbytes);
    head.checksum = asa_xxh3(k->scratch, PROVEN + nbytes);
    uint8_t *slot = k->file + place * k->slot;
    memcpy(slot + sizeof(header), body, nbytes);
    memcpy(slot, &head, sizeof head);
    return 0;
}
