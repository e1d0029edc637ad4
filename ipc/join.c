/* The recorder's join: which transitions of one agent are complete, where their bytes lie, and
 * what they add up to.
 *
 * Transition n is complete when the env has published observation n + 1, the policy action n and
 * the reward role reward n. A batch is three contiguous stretches of raw records, one in each ring,
 * with as many transitions as fit the caller's bound. The first stretch of the env begins with
 * observation 0, which no transition produced. Nothing is given back before the caller says that
 * it is written.
 */
#include <string.h>

#include "ring.h"

/* Where a scan of the three rings stands. */
typedef struct {
    uint64_t tail[3];
    uint64_t at[3];
    dsec_record record[3];
} scan;

enum { ENV, POLICY, REWARD };

static const uint32_t kinds[3] = {DSEC_KIND_OBS, DSEC_KIND_ACTION, DSEC_KIND_REWARD};

static int bad(dsec_join *j, int ring, int what, const scan *s, uint64_t found, uint64_t wanted)
{
    dsec_reader *r = j->reader[ring];
    j->bad_ring = ring;
    return dsec_corrupt(&r->fault, what, r->peer->role, s->at[ring], found, wanted);
}

/* Look at the record where ring's scan stands. DSEC_EMPTY if none is published. Records below
 * `wanted` are dropped where the join resumes behind its cursors (see dsec_join.resumed). */
static int look(dsec_join *j, int ring, scan *s, uint64_t wanted)
{
    dsec_reader *r = j->reader[ring];
    dsec_record *record = &s->record[ring];
    for (;;) {
        if (s->at[ring] == s->tail[ring])
            return DSEC_EMPTY;
        int rc = dsec_look(r, s->at[ring], s->tail[ring], record);
        if (rc) {
            j->bad_ring = ring;
            return rc;
        }
        if (record->epoch < j->epoch[ring])
            return bad(j, ring, DSEC_BAD_EPOCH, s, record->epoch, j->epoch[ring]);
        if (record->seq == wanted)
            return DSEC_OK;
        if (!j->resumed[ring] || record->seq > wanted)
            return bad(j, ring, DSEC_BAD_SEQ, s, record->seq, wanted);
        s->at[ring] += record->stride;
        j->begin[ring] = s->at[ring];
    }
}

/* A record that must be of this kind and at least so long. */
static int expect(dsec_join *j, int ring, const scan *s, uint32_t kind, uint64_t nbytes)
{
    const dsec_record *record = &s->record[ring];
    if (record->kind != kind)
        return bad(j, ring, DSEC_BAD_KIND, s, record->kind, kind);
    if (record->nbytes < nbytes)
        return bad(j, ring, DSEC_BAD_SHORT, s, record->nbytes, nbytes);
    return DSEC_OK;
}

static void step_over(dsec_join *j, int ring, scan *s)
{
    s->at[ring] += s->record[ring].stride;
    j->flags |= s->record[ring].flags;
    j->epoch[ring] = s->record[ring].epoch;
    j->resumed[ring] = 0;
    if (ring == ENV && (s->record[ENV].flags & DSEC_FLAG_END)) {
        j->end_seq = s->record[ENV].seq;
        j->seen_end |= 1u << ENV;
    }
}

static double load_f64(const uint8_t *at)
{
    double value;
    memcpy(&value, at, sizeof value);
    return value;
}

static const uint8_t *payload(const dsec_join *j, int ring, const scan *s)
{
    return j->reader[ring]->peer->data + s->record[ring].offset;
}

static void add_up(dsec_join *j, const scan *s)
{
    const uint8_t *env = payload(j, ENV, s);
    const uint8_t *reward = payload(j, REWARD, s) + j->reward_off;
    for (uint32_t i = 0; i < j->num_envs; i++) {
        j->running[i] += load_f64(reward + 8 * (size_t)i);
        j->env_running[i] += load_f64(env + j->env_reward_off + 8 * (size_t)i);
        uint8_t end = env[j->env_flags_off + i];
        if (end == 0)
            continue;
        if (end & (DSEC_END_INFRA | DSEC_END_ASIDE)) { /* no step, and its episode no return */
            if (end & (DSEC_END_INFRA | DSEC_END_FRESH))
                j->running[i] = j->env_running[i] = 0;
            j->lost++;
            continue;
        }
        j->finished[j->episodes++] = j->running[i];
        j->return_sum += j->running[i];
        j->env_return_sum += j->env_running[i];
        j->running[i] = j->env_running[i] = 0;
    }
}

static uint64_t larger(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

/* Is transition `j->next` complete, and does it fit the batch? */
static int complete(dsec_join *j, scan *s, uint64_t bytes, uint64_t max_bytes, uint64_t *grown)
{
    if ((j->seen_end & 1u << ENV) && j->next == j->end_seq)
        return DSEC_EMPTY;
    int rc = look(j, ENV, s, j->next + 1);
    if (rc == DSEC_OK)
        rc = look(j, POLICY, s, j->next);
    if (rc == DSEC_OK)
        rc = look(j, REWARD, s, j->next);
    if (rc)
        return rc;
    uint64_t n = j->num_envs;
    const uint64_t least[3] = {larger(j->env_flags_off + n, j->env_reward_off + 8 * n), 0,
                               j->reward_off + 8 * n};
    for (int ring = 0; ring < 3; ring++)
        if ((rc = expect(j, ring, s, kinds[ring], least[ring])))
            return rc;
    *grown = bytes + s->record[ENV].stride + s->record[POLICY].stride + s->record[REWARD].stride;
    if (j->count && (*grown > max_bytes || j->episodes + n > j->finished_max))
        return DSEC_EMPTY;
    return DSEC_OK;
}

/* When the last transition is taken: step over the END records of policy and reward. */
static int take_ends(dsec_join *j, scan *s)
{
    for (int ring = POLICY; ring <= REWARD; ring++) {
        if (j->seen_end & 1u << ring)
            continue;
        int rc = look(j, ring, s, j->end_seq);
        if (rc == DSEC_EMPTY)
            continue;
        if (rc == DSEC_OK)
            rc = expect(j, ring, s, DSEC_KIND_END, 0);
        if (rc)
            return rc;
        s->at[ring] += s->record[ring].stride;
        j->reader[ring]->read = s->at[ring];
        dsec_release_to(j->reader[ring], s->at[ring]);
        j->seen_end |= 1u << ring;
    }
    return DSEC_OK;
}

/* No transition is complete. What was stepped over on resuming goes back to its writer, which may
 * be waiting for just that room. */
static int take_nothing(dsec_join *j, scan *s, int at_end)
{
    for (int ring = 0; ring < 3; ring++) {
        if (!j->resumed[ring])
            continue;
        j->reader[ring]->read = j->begin[ring];
        dsec_release_to(j->reader[ring], j->begin[ring]);
    }
    int rc = at_end ? take_ends(j, s) : DSEC_OK;
    return rc ? rc : DSEC_EMPTY;
}

/* Observation 0, and with it the whole stream where that ends at once. */
static int take_first(dsec_join *j, scan *s)
{
    int rc = look(j, ENV, s, j->next);
    if (rc == DSEC_OK)
        rc = expect(j, ENV, s, kinds[ENV], 0);
    if (rc == DSEC_OK)
        step_over(j, ENV, s);
    return rc;
}

static int start_scan(dsec_join *j, scan *s)
{
    for (int ring = 0; ring < 3; ring++) {
        dsec_reader *r = j->reader[ring];
        if (!r->mine->page || !r->peer->page)
            return DSEC_CLOSED;
        int rc = dsec_tail(r, r->read, &s->tail[ring]);
        if (rc) {
            j->bad_ring = ring;
            return rc;
        }
        s->at[ring] = j->begin[ring] = r->read;
    }
    return DSEC_OK;
}

/* Find the next batch. DSEC_OK: its fields are set and it stays taken until dsec_join_release.
 * DSEC_EMPTY: no transition is complete. */
int dsec_join_take(dsec_join *j, uint64_t max_bytes)
{
    scan s;
    if (j->taken)
        return DSEC_MISUSE;
    int rc = start_scan(j, &s);
    if (rc)
        return rc;
    j->count = j->episodes = j->lost = 0;
    j->flags = 0;
    j->return_sum = j->env_return_sum = 0;
    j->first = j->next;
    int had_first = j->has_first;
    uint64_t bytes = 0;
    if (!j->has_first) {
        rc = take_first(j, &s);
        if (rc)
            return rc;
        j->has_first = 1;
        bytes = s.at[ENV] - j->begin[ENV];
    }
    while ((rc = complete(j, &s, bytes, max_bytes, &bytes)) == DSEC_OK) {
        add_up(j, &s);
        for (int ring = 0; ring < 3; ring++)
            step_over(j, ring, &s);
        j->next++;
        j->count++;
    }
    int at_end = (j->seen_end & 1u << ENV) && j->next == j->end_seq;
    if (j->count == 0 && (rc != DSEC_EMPTY || had_first || !at_end)) {
        j->has_first = had_first;
        return rc == DSEC_EMPTY ? take_nothing(j, &s, at_end) : rc;
    }
    for (int ring = 0; ring < 3; ring++)
        j->end[ring] = s.at[ring];
    j->taken = 1;
    return DSEC_OK;
}

/* The batch is written: give its records back. A recorder that dies between these three stores
 * finds its cursors apart; it resumes by sequence number. */
int dsec_join_release(dsec_join *j)
{
    if (!j->taken)
        return DSEC_MISUSE;
    for (int ring = 0; ring < 3; ring++) {
        dsec_reader *r = j->reader[ring];
        if (!r->mine->page || !r->peer->page)
            return DSEC_CLOSED;
        r->start = r->read = j->end[ring];
        dsec_release_to(r, r->read);
    }
    j->taken = 0;
    return DSEC_OK;
}

/* Everything that is published and whole but was not taken: sets begin and end. */
int dsec_join_remainder(dsec_join *j)
{
    scan s;
    for (int ring = 0; ring < 3; ring++) {
        dsec_reader *r = j->reader[ring];
        if (!r->mine->page || !r->peer->page)
            return DSEC_CLOSED;
        j->begin[ring] = j->end[ring] = s.at[ring] = r->read;
        if (dsec_tail(r, r->read, &s.tail[ring]))
            continue;
        dsec_record *record = &s.record[ring];
        while (s.at[ring] != s.tail[ring] && !dsec_look(r, s.at[ring], s.tail[ring], record)) {
            s.at[ring] += record->stride;
            j->end[ring] = s.at[ring];
        }
    }
    return DSEC_OK;
}
