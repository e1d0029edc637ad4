/* A turn: answer the current record and wait for the next, in one call.
 *
 * What an env runner and a policy runner do for each step: publish the record they have written,
 * give back the one that it answers, make room for the next answer, wait for what is to be
 * answered. From Python four calls, each with the interpreter's lock given up and taken again;
 * where many processes take turns on a core, each call is also code and memory that is cold.
 */
#define _GNU_SOURCE

#include "ring.h"

static int is_due(const dsec_turn *t, const dsec_record *now, uint64_t seq)
{
    return now->seq == seq && now->kind == t->due_kind && now->nbytes >= t->due_least &&
           now->nbytes <= t->due_most;
}

/* Publish record `seq`, whose `nbytes` are written where the last call said; then wait. Returns, in
 * grains, where the next payload of mine goes (bits 0..25) and where the record that is now current
 * begins (bits 26..51), and its flags (bits 52..61). Or an error:
 * DSEC_TIMEOUT, DSEC_INTERRUPTED: mine is published and the old one given back; go on with
 *     dsec_claim() and dsec_next().
 * DSEC_OTHER: a record came, and is current, that is not what was due. */
int64_t dsec_turn_take(dsec_turn *t, uint64_t seq, uint32_t flags)
{
    dsec_reader *r = t->reader;
    dsec_outbox *b = r->mine;
    int rc = dsec_commit(b, seq, t->kind, flags, t->nbytes);
    if (rc)
        return rc;
    if (!t->keep && (rc = dsec_release(r)))
        return rc;
    int64_t offset = dsec_claim(b, t->nbytes, t->timeout_s);
    if (offset < 0)
        return offset;
    rc = dsec_next(r, t->timeout_s, t->phase);
    if (rc)
        return rc;
    if (!is_due(t, &r->now, seq + t->ahead))
        return DSEC_OTHER;
    return offset / DSEC_GRAIN | (int64_t)(r->now.offset / DSEC_GRAIN) << 26 |
           (int64_t)(r->now.flags & 0x3ff) << 52;
}
