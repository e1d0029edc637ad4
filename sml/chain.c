/* The hash chain of one agent, over raw records as they lie in rings and journals.
 *
 * A link takes the chain from before transition n to after it:
 *
 *     value' = H(value | first | H(next) | H(action) | rewards | own rewards | flags)
 *
 * H is XXH3 with 128 bits. `next` is what the actions led to, the terminal observation where an
 * episode ended; `first` is the hash of the observations with which episodes began before n, and
 * stands there only if any did. A tree of values is hashed as the bytes of its arrays, one after
 * the other, then each value without a fixed size behind its length. What lies between arrays, and
 * infos, which may hold times, are no part of it. Where an environment was lost (G4) there is no
 * transition: the link is H(value | "infra"), and everything begins anew.
 *
 * The bytes may come from anybody's file: nothing is read that was not measured before.
 */
#include <stdlib.h>
#include <string.h>

#include "pool.h"
#include "ring.cdef.h"

#include "record.h"

_Static_assert(sizeof(asa_point) == ASA_POINT, "marks are written to journals as they are");

enum { ENV, POLICY, REWARD };
enum { ANY_END = 0xff };

static const char LOST[5] = {'i', 'n', 'f', 'r', 'a'};
static const uint8_t nothing[ASA_LINK];

/* One record, and what lies behind its fixed part. */
typedef struct {
    const uint8_t *payload;
    uint64_t nbytes;
    uint16_t flags;
    const uint8_t *values;    /* lengths of the values without a fixed size, then they */
    const uint8_t *finals;    /* slots of terminal observations, or NULL */
    const uint8_t *loose;     /* what of them has no fixed size */
    uint64_t loose_bytes;
} record;

/* A stretch of raw records. */
typedef struct {
    const uint8_t *at, *end;
} stretch;

static uint64_t load(const uint8_t *at)
{
    uint64_t value;
    memcpy(&value, at, sizeof value);
    return value;
}

static uint32_t load_small(const uint8_t *at)
{
    uint32_t value;
    memcpy(&value, at, sizeof value);
    return value;
}

static int corrupt(asa_chain *c, int role, uint64_t seq)
{
    c->bad_role = (uint64_t)role;
    c->bad_seq = seq;
    return ASA_CORRUPT;
}

/* The next record of a stretch, which must be of this kind and number, and at least so long. */
static int next(asa_chain *c, int role, stretch *s, uint64_t seq, uint16_t kind, uint64_t least,
                record *out)
{
    uint64_t left = (uint64_t)(s->end - s->at);
    if (left < DSEC_HEAD)
        return corrupt(c, role, seq);
    dsec_head head;
    memcpy(&head, s->at, sizeof head);
    uint64_t stride = dsec_record_stride(head.nbytes);
    if (head.mark != DSEC_RECORD_MARK || head.seq != seq || head.kind != kind ||
        head.nbytes < least || stride > left)
        return corrupt(c, role, seq);
    *out = (record){.payload = s->at + DSEC_HEAD, .nbytes = head.nbytes, .flags = head.flags};
    s->at += stride;
    return ASA_OK;
}

/* Bytes that `count` values behind their lengths take; UINT64_MAX if they aren't all there. */
static uint64_t measure(const uint8_t *at, uint64_t count, uint64_t room)
{
    if (count > room / 8)
        return UINT64_MAX;
    uint64_t total = 8 * count;
    for (uint64_t i = 0; i < count; i++) {
        uint64_t length = load(at + 8 * i);
        if (length > room - total)
            return UINT64_MAX;
        total += length;
    }
    uint64_t padded = (total + 15) & ~(uint64_t)15;
    return padded < room ? padded : room;
}

/* Find the parts of an env record's tail; c->places says where each environment's terminal
 * observation is: its rank among them, plus one. */
static int open_tail(asa_chain *c, record *r, uint64_t seq)
{
    const asa_shape *s = &c->shape;
    const uint8_t *tail = r->payload + s->obs_bytes;
    uint64_t room = r->nbytes - s->obs_bytes, n = s->num_envs;
    r->values = tail;
    if (s->obs_variable) {
        uint64_t took = measure(tail, s->obs_variable * n, room);
        if (took == UINT64_MAX)
            return corrupt(c, ENV, seq);
        tail += took;
        room -= took;
    }
    memset(c->places, 0, 8 * n);
    if (!room)
        return ASA_OK;
    if (room < 16)
        return corrupt(c, ENV, seq);
    uint64_t count = load_small(tail), loose = load_small(tail + 4);
    uint64_t indices = 16 + count * s->final_stride;
    if (count > n || indices + 4 * count + loose > room)
        return corrupt(c, ENV, seq);
    r->finals = tail + 16;
    r->loose = tail + indices + 4 * count;
    r->loose_bytes = loose;
    for (uint64_t k = 0; k < count; k++) {
        uint32_t i = load_small(tail + indices + 4 * k);
        if (i >= n || c->places[i])
            return corrupt(c, ENV, seq);
        c->places[i] = k + 1;
    }
    return ASA_OK;
}

static int need(asa_chain *c, uint64_t room)
{
    if (room <= c->room)
        return ASA_OK;
    uint8_t *larger = realloc(c->scratch, room + room / 4);
    if (!larger)
        return ASA_NO_MEMORY;
    c->scratch = larger;
    c->room = room + room / 4;
    return ASA_OK;
}

static uint8_t *put(uint8_t *to, const uint8_t *from, uint64_t nbytes)
{
    if (nbytes)
        memcpy(to, from, nbytes);
    return to + nbytes;
}

/* Value k of `count` behind their lengths, with its length before it. */
static uint8_t *put_value(uint8_t *to, const uint8_t *lengths, uint64_t count, uint64_t k)
{
    const uint8_t *at = lengths + 8 * count;
    for (uint64_t i = 0; i < k; i++)
        at += load(lengths + 8 * i);
    to = put(to, lengths + 8 * k, 8);
    return put(to, at, load(lengths + 8 * k));
}

/* Where the values of each terminal observation begin: they follow one another, each measured. */
static int find_loose(asa_chain *c, const record *r, uint64_t seq, const uint8_t **begin)
{
    uint64_t count = c->shape.obs_variable, room = r->loose_bytes;
    const uint8_t *at = r->loose;
    uint64_t most = 0;
    for (uint64_t i = 0; i < c->shape.num_envs; i++)
        most += c->places[i] != 0;
    for (uint64_t k = 0; k < most; k++) {
        uint64_t took = measure(at, count, room);
        if (took == UINT64_MAX)
            return corrupt(c, ENV, seq);
        begin[k] = at;
        at += took;
        room -= took;
    }
    return ASA_OK;
}

/* The hash of observations. `only` limits it to environments with such a flag (0: all of them);
 * `ended` takes the terminal one where there is one. */
static int hash_obs(asa_chain *c, const record *r, uint64_t seq, int only, int ended, uint8_t *out)
{
    const asa_shape *s = &c->shape;
    uint64_t n = s->num_envs;
    const uint8_t *flags = r->payload + s->flags_off;
    int plain = !only && !ended;
    if (plain && s->obs_leaves == 1 && !s->obs_variable) {
        asa_xxh3_128(r->payload + s->obs[0].offset, n * s->obs[0].nbytes, out);
        return ASA_OK;
    }
    int rc = need(c, 2 * r->nbytes + 16 * (s->obs_variable + 1) * n);
    if (rc)
        return rc;
    const uint8_t **loose = NULL;
    if (ended && s->obs_variable) {
        loose = calloc(n, sizeof *loose);
        rc = loose ? find_loose(c, r, seq, loose) : ASA_NO_MEMORY;
    }
    uint8_t *to = c->scratch;
    for (uint64_t l = 0; !rc && l < s->obs_leaves; l++) {
        const asa_leaf *leaf = &s->obs[l];
        if (plain) {
            to = put(to, r->payload + leaf->offset, n * leaf->nbytes);
            continue;
        }
        for (uint64_t i = 0; i < n; i++) {
            const uint8_t *from = r->payload + leaf->offset + i * leaf->nbytes;
            if (ended && c->places[i])
                from = r->finals + (c->places[i] - 1) * s->final_stride + leaf->final_offset;
            if (!only || flags[i] & only)
                to = put(to, from, leaf->nbytes);
        }
    }
    for (uint64_t v = 0; !rc && v < s->obs_variable; v++)
        for (uint64_t i = 0; i < n; i++) {
            if (only && !(flags[i] & only))
                continue;
            if (ended && c->places[i])
                to = put_value(to, loose[c->places[i] - 1], s->obs_variable, v);
            else
                to = put_value(to, r->values, s->obs_variable * n, v * n + i);
        }
    free(loose);
    if (!rc)
        asa_xxh3_128(c->scratch, (uint64_t)(to - c->scratch), out);
    return rc;
}

static int hash_action(asa_chain *c, const record *r, uint64_t seq, uint8_t *out)
{
    const asa_shape *s = &c->shape;
    uint64_t n = s->num_envs, count = s->action_variable * n;
    if (s->action_leaves == 1 && !count) {
        asa_xxh3_128(r->payload + s->action[0].offset, n * s->action[0].nbytes, out);
        return ASA_OK;
    }
    const uint8_t *tail = r->payload + s->action_bytes;
    if (count && measure(tail, count, r->nbytes - s->action_bytes) == UINT64_MAX)
        return corrupt(c, POLICY, seq);
    int rc = need(c, r->nbytes + 8 * count);
    if (rc)
        return rc;
    uint8_t *to = c->scratch;
    for (uint64_t l = 0; l < s->action_leaves; l++)
        to = put(to, r->payload + s->action[l].offset, n * s->action[l].nbytes);
    for (uint64_t k = 0; k < count; k++)
        to = put_value(to, tail, count, k);
    asa_xxh3_128(c->scratch, (uint64_t)(to - c->scratch), out);
    return ASA_OK;
}

/* One link; `room` takes 64 + 17 * n bytes. */
static void link_on(asa_point *at, const uint8_t *obs, const uint8_t *action, const uint8_t *reward,
                    const uint8_t *own, const uint8_t *flags, uint64_t n, uint8_t *room)
{
    uint8_t *to = put(room, at->value, ASA_LINK);
    if (memcmp(at->first, nothing, ASA_LINK))
        to = put(to, at->first, ASA_LINK);
    to = put(to, obs, ASA_LINK);
    to = put(to, action, ASA_LINK);
    to = put(to, reward, 8 * n);
    to = put(to, own, 8 * n);
    to = put(to, flags, n);
    asa_xxh3_128(room, (uint64_t)(to - room), at->value);
    memset(at->first, 0, ASA_LINK);
    at->seq++;
}

static void link_lost(asa_point *at)
{
    uint8_t both[ASA_LINK + sizeof LOST];
    memcpy(both, at->value, ASA_LINK);
    memcpy(both + ASA_LINK, LOST, sizeof LOST);
    asa_xxh3_128(both, sizeof both, at->value);
    memset(at->first, 0, ASA_LINK);
    at->seq++;
}

static int take_one(asa_chain *c, stretch *env, stretch *policy, stretch *reward, uint16_t *said)
{
    const asa_shape *s = &c->shape;
    uint64_t seq = c->at.seq, n = s->num_envs;
    record e, p, r;
    int rc = next(c, ENV, env, seq + 1, DSEC_KIND_OBS, s->obs_bytes, &e);
    if (!rc)
        rc = next(c, POLICY, policy, seq, DSEC_KIND_ACTION, s->action_bytes, &p);
    if (!rc)
        rc = next(c, REWARD, reward, seq, DSEC_KIND_REWARD, 8 * n, &r);
    if (!rc && (e.nbytes > s->obs_bytes || s->obs_variable))
        rc = open_tail(c, &e, seq + 1);
    if (rc)
        return rc;
    const uint8_t *flags = e.payload + s->flags_off;
    uint8_t ended = 0;
    for (uint64_t i = 0; i < n; i++)
        ended |= flags[i];
    *said = e.flags;
    if (ended & (DSEC_END_INFRA | DSEC_END_ASIDE)) {
        link_lost(&c->at);
        return hash_obs(c, &e, seq + 1, 0, 0, c->at.first);
    }
    for (uint64_t i = 0; ended && i < n; i++)
        if (!e.finals || !flags[i] != !c->places[i])
            return corrupt(c, ENV, seq + 1);
    uint8_t obs[ASA_LINK], action[ASA_LINK];
    rc = hash_obs(c, &e, seq + 1, 0, ended != 0, obs);
    if (!rc)
        rc = hash_action(c, &p, seq, action);
    if (!rc)
        rc = need(c, 64 + 17 * n);
    if (rc)
        return rc;
    link_on(&c->at, obs, action, r.payload, e.payload, flags, n, c->scratch);
    return ended ? hash_obs(c, &e, seq + 1, ANY_END, 0, c->at.first) : ASA_OK;
}

/* Take `count` transitions in. `marks` has room for count + 1: one is made at each boundary, at
 * multiples of ASA_MARK_EVERY and, always, at the end. Otherwise than ASA_OK the chain is as it
 * was. */
int asa_chain_take(asa_chain *c, const uint8_t *env, uint64_t env_bytes, const uint8_t *policy,
                   uint64_t policy_bytes, const uint8_t *reward, uint64_t reward_bytes,
                   uint64_t count, asa_point *marks, uint64_t *made)
{
    stretch e = {env, env + env_bytes}, p = {policy, policy + policy_bytes};
    stretch r = {reward, reward + reward_bytes};
    const asa_point before = c->at;
    uint64_t done = 0;
    int rc = ASA_OK;
    if (c->at.seq == 0 && !memcmp(c->at.first, nothing, ASA_LINK)) {
        record first;
        rc = next(c, ENV, &e, 0, DSEC_KIND_OBS, c->shape.obs_bytes, &first);
        if (!rc)
            rc = open_tail(c, &first, 0);
        if (!rc)
            rc = hash_obs(c, &first, 0, 0, 0, c->at.first);
    }
    for (uint64_t t = 0; !rc && t < count; t++) {
        uint16_t said = 0;
        rc = take_one(c, &e, &p, &r, &said);
        if (said & DSEC_FLAG_BOUNDARY || c->at.seq % ASA_MARK_EVERY == 0 || t + 1 == count)
            marks[done++] = c->at;
    }
    if (!rc && (e.at != e.end || p.at != p.end || r.at != r.end))
        rc = corrupt(c, e.at != e.end ? ENV : p.at != p.end ? POLICY : REWARD, c->at.seq);
    if (rc) {
        c->at = before;
        return rc;
    }
    if (!count)
        marks[done++] = c->at;
    *made = done;
    return ASA_OK;
}

void asa_chain_free(asa_chain *c)
{
    free(c->scratch);
    c->scratch = NULL;
    c->room = 0;
}

/* ------------------------------------------------------------------ from tables */

/* Count the transitions up to `until` as lost; tables have no rows for them. */
void asa_chain_skip(asa_point *at, uint64_t until, asa_point *marks, uint64_t *made)
{
    while (at->seq < until) {
        link_lost(at);
        if (at->seq % ASA_MARK_EVERY == 0)
            marks[(*made)++] = *at;
    }
}

/* Take rows in, in order; what is missing between them was lost. Only marks at multiples of
 * ASA_MARK_EVERY are made. */
int asa_chain_rows(asa_point *at, const asa_rows *rows, asa_point *marks, uint64_t *made)
{
    uint64_t n = rows->num_envs;
    uint8_t *room = malloc(64 + 17 * n);
    if (!room)
        return ASA_NO_MEMORY;
    for (uint64_t t = 0; t < rows->count; t++) {
        asa_chain_skip(at, rows->seq[t], marks, made);
        memcpy(at->first, rows->first + ASA_LINK * t, ASA_LINK);
        link_on(at, rows->obs + ASA_LINK * t, rows->action + ASA_LINK * t, rows->reward + 8 * n * t,
                rows->env_reward + 8 * n * t, rows->flags + n * t, n, room);
        if (at->seq % ASA_MARK_EVERY == 0)
            marks[(*made)++] = *at;
    }
    free(room);
    return ASA_OK;
}

/* The hash of each of `count` rows of `nbytes`. */
void asa_hash_rows(const uint8_t *base, uint64_t nbytes, uint64_t count, uint8_t *out)
{
    for (uint64_t i = 0; i < count; i++)
        asa_xxh3_128(base + nbytes * i, nbytes, out + ASA_LINK * i);
}
