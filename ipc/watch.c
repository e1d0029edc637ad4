/* Watching memory of this very process: which of many small regions have changed since they were
 * looked at last?
 *
 * What lies in them is the caller's affair: bytes are compared and copied, never interpreted. Who
 * hands in an address vouches for its staying readable.
 */
#include <string.h>

#include "ring.h"

/* Compare each region with its copy, and renew the copy where it differs. `copies` holds them one
 * after the other; `changed` gets the entries of the regions that differ, each once, in order. The
 * regions of an entry follow each other. Returns how many entries changed. */
uint32_t dsec_watch(const dsec_region *regions, uint32_t count, uint8_t *copies, uint32_t *changed)
{
    uint32_t found = 0;
    for (uint32_t i = 0; i < count; i++) {
        const void *now = (const void *)(uintptr_t)regions[i].address;
        if (memcmp(copies, now, regions[i].nbytes) != 0) {
            memcpy(copies, now, regions[i].nbytes);
            if (!found || changed[found - 1] != regions[i].entry)
                changed[found++] = regions[i].entry;
        }
        copies += regions[i].nbytes;
    }
    return found;
}
