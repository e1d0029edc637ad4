/* Lockstep: one action to each of N environments, one observation back from each, in one call.
 *
 * The caller is the policy of N agents ("lanes"). The doorbell of the group is one counter for all
 * N env runners, with one wake-up when the last of them arrives. It is a hint and no more: every
 * env can write it, one may die before or after its increment, so every wake-up looks at all the
 * tails again, and no sleep on it is long.
 */
#define _GNU_SOURCE
#include <string.h>

#include "ring.h"

/* How long a wrong count can delay a step. */
#define GROUP_SLICE_NS (20 * 1000 * 1000LL)

/* Map-time check of a doorbell page; its words are never trusted. */
int dsec_group_open(void *page, dsec_fault *fault)
{
    const volatile dsec_ident *ident = &((dsec_group_page *)page)->ident;
    uint64_t magic = ident->magic;
    uint32_t role = ident->role;
    if (magic != DSEC_MAGIC)
        return dsec_corrupt(fault, DSEC_BAD_MAGIC, DSEC_GROUP_ROLE, 0, magic, DSEC_MAGIC);
    if (role != DSEC_GROUP_ROLE)
        return dsec_corrupt(fault, DSEC_BAD_ROLE, DSEC_GROUP_ROLE, 0, role, DSEC_GROUP_ROLE);
    return DSEC_OK;
}

static int lane_closed(const dsec_lane *lane)
{
    return !lane->box->page || !lane->reader->mine->page || !lane->reader->peer->page;
}

/* ------------------------------------------------------------------ scatter */

/* Publish the lane's action; nobody is woken yet. */
static int scatter_lane(dsec_group *g, uint32_t i, double timeout_s)
{
    dsec_lane *lane = &g->lane[i];
    int64_t offset = dsec_claim(lane->box, g->action_bytes, timeout_s);
    if (offset < 0)
        return (int)offset;
    for (uint32_t k = 0; k < g->nactions; k++) {
        const dsec_piece *piece = &g->action[k];
        memcpy(lane->box->data + offset + piece->offset,
               piece->memory + (size_t)i * piece->nbytes, piece->nbytes);
    }
    const dsec_record *obs = &lane->reader->now;
    uint32_t flags = obs->flags & DSEC_FLAG_BOUNDARY;
    int rc = dsec_publish(lane->box, obs->seq, DSEC_KIND_ACTION, flags, g->action_bytes);
    if (rc)
        return rc;
    lane->state = DSEC_LANE_SENT;
    return DSEC_OK;
}

/* Wake whom the new actions are for, and give back what they answer. Only after all are published:
 * who is woken may take this processor at once, and lanes that poll on another have theirs by then.
 */
static void announce(dsec_group *g)
{
    /* SYNC POINT want: as in dsec_commit(), for all lanes at once: all tails, then all wants. */
    dsec_fence();
    for (uint32_t i = 0; i < g->nlanes; i++) {
        dsec_lane *lane = &g->lane[i];
        if (lane->state != DSEC_LANE_SENT)
            continue;
        lane->state = DSEC_LANE_PENDING;
        dsec_wake_followers(lane->box, 0);
        dsec_release_to(lane->reader, lane->reader->read);
    }
}

/* Send each lane the action that is due. Can be called again after it was cut short: lanes that
 * have theirs are left alone. */
static int scatter(dsec_group *g, int64_t deadline)
{
    int rc = DSEC_OK;
    for (uint32_t i = 0; rc == DSEC_OK && i < g->nlanes; i++) {
        if (g->lane[i].state != DSEC_LANE_DUE)
            continue;
        int64_t left = deadline == INT64_MAX ? INT64_MAX : deadline - dsec_now_ns();
        rc = lane_closed(&g->lane[i]) ? DSEC_CLOSED : scatter_lane(g, i, (double)left * 1e-9);
        if (rc)
            g->bad_lane = i;
    }
    announce(g);
    return rc;
}

/* ------------------------------------------------------------------ gather */

/* Take the lane's next record, if it is there, into the caller's arrays. It stays current, so that
 * what follows the fixed part can be decoded, until the next scatter gives it back. */
static int gather_lane(dsec_group *g, uint32_t i)
{
    dsec_lane *lane = &g->lane[i];
    dsec_reader *r = lane->reader;
    uint64_t expected = lane->started ? r->now.seq + 1 : r->now.seq;
    int rc = dsec_advance(r);
    if (rc)
        return rc;
    const dsec_record *now = &r->now;
    uint32_t role = r->peer->role;
    if (now->kind != DSEC_KIND_OBS)
        return dsec_corrupt(&r->fault, DSEC_BAD_KIND, role, r->start, now->kind, DSEC_KIND_OBS);
    if (lane->started && now->seq != expected)
        return dsec_corrupt(&r->fault, DSEC_BAD_SEQ, role, r->start, now->seq, expected);
    if (now->nbytes < g->fixed_bytes)
        return dsec_corrupt(&r->fault, DSEC_BAD_SHORT, role, r->start, now->nbytes,
                            g->fixed_bytes);
    for (uint32_t k = 0; k < g->nsinks; k++) {
        const dsec_piece *piece = &g->sink[k];
        memcpy(piece->memory + (size_t)i * piece->nbytes,
               r->peer->data + now->offset + piece->offset, piece->nbytes);
    }
    lane->started = 1;
    lane->state = now->flags & DSEC_FLAG_END ? DSEC_LANE_ENDED : DSEC_LANE_IDLE;
    g->notable += now->nbytes > g->fixed_bytes || lane->state == DSEC_LANE_ENDED;
    return DSEC_OK;
}

/* Look at every lane that owes a record. Returns how many still do, or an error. */
static int sweep(dsec_group *g)
{
    int missing = 0;
    for (uint32_t i = 0; i < g->nlanes; i++) {
        if (g->lane[i].state != DSEC_LANE_PENDING)
            continue;
        int rc = lane_closed(&g->lane[i]) ? DSEC_CLOSED : gather_lane(g, i);
        if (rc == DSEC_EMPTY) {
            g->late = i;
            missing++;
        } else if (rc) {
            g->bad_lane = i;
            return rc;
        }
    }
    return missing;
}

/* Sleep until the group is complete, or on the late lane's own tail where there is no doorbell. */
static int sleep_for_group(dsec_group *g, int64_t deadline)
{
    dsec_group_page *page = g->page;
    for (;;) {
        uint64_t count = page ? atomic_load_explicit(&page->count.value, memory_order_seq_cst) : 0;
        int missing = sweep(g);
        if (missing <= 0)
            return missing;
        if (dsec_interrupted())
            return DSEC_INTERRUPTED;
        int64_t now = dsec_now_ns();
        if (now >= deadline)
            return DSEC_TIMEOUT;
        int64_t until = deadline - now > GROUP_SLICE_NS ? now + GROUP_SLICE_NS : deadline;
        if (!page) {
            dsec_reader *r = g->lane[g->late].reader;
            int rc = dsec_sleep_for_tail(r, r->read + DSEC_GRAIN, until);
            if (rc != DSEC_OK && rc != DSEC_TIMEOUT)
                return rc;
            continue;
        }
        /* Each missing lane will add one after this count was read, so the last one reaches this
         * want; additions that are still owed from the step before only wake us early. */
        atomic_store_explicit(&page->want.value, count + (uint64_t)missing, memory_order_seq_cst);
        /* SYNC POINT group: pairs with ring_group() in ring.c: want then count here, count then
         * want there. */
        dsec_fence();
        if (atomic_load_explicit(&page->count.value, memory_order_seq_cst) != count)
            continue;
        if (dsec_sleep(&page->count, count, DSEC_ALL_BITS, until) == DSEC_INTERRUPTED) {
            missing = sweep(g);
            return missing > 0 ? DSEC_INTERRUPTED : missing;
        }
    }
}

static int wait_for_lanes(dsec_group *g, int64_t deadline)
{
    int missing = sweep(g);
    for (uint32_t left = dsec_polls(&g->poll); missing > 0 && left > 0; left--) {
        int go_on = dsec_yield(&g->poll, deadline);
        missing = sweep(g);
        if (missing > 0 && go_on == DSEC_EMPTY)
            break;
        if (missing > 0 && go_on != DSEC_OK)
            return go_on;
    }
    if (missing <= 0)
        return missing;
    int rc = sleep_for_group(g, deadline);
    dsec_group_page *page = g->page;
    if (page)
        atomic_store_explicit(&page->want.value, DSEC_AWAKE, memory_order_relaxed);
    return rc;
}

/* Finish what is under way: send what was not sent, wait for all lanes, gather. Returns the number
 * of lanes with something to look at (extra bytes, or the end of the stream), or an error, after
 * which it may be called again. */
int dsec_group_gather(dsec_group *g, double timeout_s)
{
    if (!g->busy)
        return DSEC_MISUSE;
    int64_t deadline = dsec_deadline(timeout_s);
    int rc = scatter(g, deadline);
    if (rc == DSEC_OK)
        rc = wait_for_lanes(g, deadline);
    if (rc)
        return rc;
    g->busy = 0;
    return (int)g->notable;
}

/* One step of all lanes. */
int dsec_group_step(dsec_group *g, double timeout_s)
{
    if (g->busy)
        return DSEC_MISUSE;
    g->busy = 1;
    g->notable = 0;
    for (uint32_t i = 0; i < g->nlanes; i++)
        if (g->lane[i].state == DSEC_LANE_IDLE)
            g->lane[i].state = DSEC_LANE_DUE;
    return dsec_group_gather(g, timeout_s);
}
