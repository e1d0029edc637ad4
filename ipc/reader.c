/* The ring's reading side. What the writer does, and how the two wake each other, is in ring.c.
 *
 * Whatever bytes the writer put into its segment, nothing here reads outside the mapping, loops
 * without end or returns an offset outside the data area: each header is loaded once, checked
 * against the tail, and only the checked copy is used.
 */
#define _GNU_SOURCE
#include <string.h>

#include "ring.h"

static dsec_slot *my_slot(const dsec_reader *r)
{
    return &((dsec_page *)r->mine->page)->slot[r->peer->role];
}

static int reader_closed(const dsec_reader *r)
{
    return !r->mine || !r->mine->page || !r->peer->page;
}

/* The peer's tail, checked against a position of mine. */
int dsec_tail(dsec_reader *r, uint64_t position, uint64_t *tail)
{
    const dsec_page *page = r->peer->page;
    /* SYNC POINT tail: pairs with dsec_publish(); what lies below this tail is written. */
    *tail = dsec_load_acquire(&page->tail);
    uint64_t ahead = *tail - position;
    if (ahead > r->peer->capacity || ahead % DSEC_GRAIN)
        return dsec_corrupt(&r->fault, DSEC_BAD_TAIL, r->peer->role, position, *tail, position);
    return DSEC_OK;
}

/* The record at `position`, which is below the (checked) tail: validate its header. `out`
 * is only written where all is well. */
int dsec_look(dsec_reader *r, uint64_t position, uint64_t tail, dsec_record *out)
{
    uint64_t at = position & (r->peer->capacity - 1);
    const _Atomic uint64_t *head = (const _Atomic uint64_t *)(const void *)(r->peer->data + at);
    uint64_t word[4];
    for (int i = 0; i < 4; i++)
        word[i] = atomic_load_explicit(&head[i], memory_order_relaxed);
    uint32_t role = r->peer->role;
    uint64_t ahead = tail - position;
    if (word[0] != position)
        return dsec_corrupt(&r->fault, DSEC_BAD_POSITION, role, position, word[0], position);
    if (word[3] >> 32 != DSEC_RECORD_MARK)
        return dsec_corrupt(&r->fault, DSEC_BAD_MARK, role, position, word[3] >> 32,
                            DSEC_RECORD_MARK);
    uint32_t nbytes = (uint32_t)word[2];
    uint64_t stride = dsec_stride(nbytes);
    if (stride > ahead || stride > r->peer->capacity / 2)
        return dsec_corrupt(&r->fault, DSEC_BAD_LENGTH, role, position, nbytes, ahead);
    uint16_t kind = (uint16_t)word[3];
    if (kind == 0 || kind > DSEC_KIND_MAX)
        return dsec_corrupt(&r->fault, DSEC_BAD_KIND, role, position, kind, DSEC_KIND_MAX);
    *out = (dsec_record){.seq = word[1],
                         .offset = at + DSEC_HEAD,
                         .nbytes = nbytes,
                         .epoch = (uint32_t)(word[2] >> 32),
                         .kind = kind,
                         .flags = (uint16_t)(word[3] >> 16),
                         .stride = (uint32_t)stride};
    return DSEC_OK;
}

/* Make the record after the current one the current one, if it is published. What lies below a tail
 * once seen stays published, so a burst costs one look at the writer's tail, whose cache line the
 * writer changes all the time, and not one a record. */
int dsec_advance(dsec_reader *r)
{
    int rc;
    if (dsec_reached(r->read, r->known)) {
        uint64_t tail;
        rc = dsec_tail(r, r->read, &tail);
        if (rc)
            return rc;
        if (tail == r->read)
            return DSEC_EMPTY;
        r->known = tail;
    }
    rc = dsec_look(r, r->read, r->known, &r->now);
    if (rc)
        return rc;
    r->start = r->read;
    r->read += r->now.stride;
    if (r->known != r->read) {
        const uint8_t *following = r->peer->data + (r->read & (r->peer->capacity - 1));
        dsec_expect_read(following);
        dsec_expect_read(following + 64);
    }
    return DSEC_OK;
}

/* What lies in a ring from `position` on, below `tail`: at most `most` records, for somebody who
 * has no cursor there. Ends where a header is not one of this round. */
uint32_t dsec_scan(uint8_t *data, uint64_t capacity, uint64_t position, uint64_t tail,
                   dsec_record *out, uint32_t most)
{
    dsec_peer ring = {.data = data, .capacity = capacity};
    dsec_reader none = {.peer = &ring};
    uint32_t found = 0;
    if (tail - position > capacity || position % DSEC_GRAIN)
        return 0;
    while (found < most && position != tail &&
           dsec_look(&none, position, tail, &out[found]) == DSEC_OK)
        position += out[found++].stride;
    return found;
}

/* Step over the published records before number `seq`; they stay held until they are released. */
int dsec_pass(dsec_reader *r, uint64_t seq)
{
    if (reader_closed(r))
        return DSEC_CLOSED;
    for (;;) {
        uint64_t tail;
        dsec_record next;
        int rc = dsec_tail(r, r->read, &tail);
        if (rc || tail == r->read)
            return rc;
        rc = dsec_look(r, r->read, tail, &next);
        if (rc || next.seq >= seq)
            return rc;
        r->known = tail;
        r->now = next;
        r->start = r->read;
        r->read += next.stride;
    }
}

/* Is the tail at `want`, or an urgent record ahead? */
static int ready(dsec_reader *r, uint64_t want, uint64_t *tail)
{
    int rc = dsec_tail(r, r->read, tail);
    if (rc)
        return rc;
    if (dsec_reached(*tail, want))
        return DSEC_OK;
    uint64_t urgent = dsec_load(&((const dsec_page *)r->peer->page)->urgent);
    int ahead = urgent != r->read && dsec_reached(urgent, r->read);
    return ahead && *tail != r->read ? DSEC_OK : DSEC_EMPTY;
}

int dsec_sleep_for_tail(dsec_reader *r, uint64_t want, int64_t deadline)
{
    dsec_slot *slot = my_slot(r);
    uint64_t tail;
    int rc;
    for (;;) {
        dsec_store(&slot->want, want);
        /* SYNC POINT want: pairs with the fence in dsec_commit(): either this look sees the new
         * tail, or the writer's look sees this want and wakes. */
        dsec_fence();
        rc = ready(r, want, &tail);
        if (rc != DSEC_EMPTY)
            break;
        if (dsec_interrupted()) {
            rc = DSEC_INTERRUPTED;
            break;
        }
        if (dsec_now_ns() >= deadline) {
            rc = DSEC_TIMEOUT;
            break;
        }
        r->mine->sleeps++;
        const dsec_page *page = r->peer->page;
        if (dsec_sleep(&page->tail, tail, 1u << r->mine->role, deadline) == DSEC_INTERRUPTED) {
            rc = ready(r, want, &tail);
            rc = rc == DSEC_EMPTY ? DSEC_INTERRUPTED : rc;
            break;
        }
    }
    dsec_store(&slot->want, DSEC_AWAKE);
    return rc;
}

static int wait_for_tail(dsec_reader *r, uint64_t want, double timeout_s)
{
    uint64_t tail;
    int rc = ready(r, want, &tail);
    if (rc != DSEC_EMPTY)
        return rc;
    if (!(timeout_s > 0))
        return DSEC_TIMEOUT;
    int64_t deadline = dsec_deadline(timeout_s);
    for (uint32_t left = dsec_polls(&r->mine->poll); left > 0; left--) {
        int go_on = dsec_yield(&r->mine->poll, deadline);
        rc = ready(r, want, &tail);
        if (rc != DSEC_EMPTY)
            return rc;
        if (go_on == DSEC_EMPTY)
            break;
        if (go_on != DSEC_OK)
            return go_on;
    }
    return dsec_sleep_for_tail(r, want, deadline);
}

/* Wait for the next record and make it current. The progress word says IDLE while this waits,
 * and `then` with the record's seq when it returns DSEC_OK. */
int dsec_next(dsec_reader *r, double timeout_s, uint32_t then)
{
    if (reader_closed(r))
        return DSEC_CLOSED;
    int rc = dsec_advance(r);
    if (rc == DSEC_EMPTY) {
        dsec_enter(r->mine, 0, r->mine->seq);
        rc = wait_for_tail(r, r->read + DSEC_GRAIN, timeout_s);
        if (rc == DSEC_OK)
            rc = dsec_advance(r);
    }
    if (rc == DSEC_OK)
        dsec_enter(r->mine, then, r->now.seq);
    return rc;
}

int dsec_try_next(dsec_reader *r, uint32_t then)
{
    if (reader_closed(r))
        return DSEC_CLOSED;
    int rc = dsec_advance(r);
    if (rc == DSEC_OK)
        dsec_enter(r->mine, then, r->now.seq);
    return rc;
}

/* Wait for a record, then make current, one after the other, all that are there, at most `most`.
 * Their headers are in `out`; dsec_release() gives all of them back. Returns how many, or an error:
 * a malformed record behind good ones is an error of the next call. */
int dsec_next_many(dsec_reader *r, double timeout_s, uint32_t then, dsec_record *out, int most)
{
    int rc = dsec_next(r, timeout_s, then);
    if (rc)
        return rc;
    int n = 0;
    do
        out[n++] = r->now;
    while (n < most && dsec_advance(r) == DSEC_OK);
    return n;
}

/* Wait for the next record, copy its payload and give it back. Returns the payload's bytes, or an
 * error. A payload larger than `room` is DSEC_TOO_LARGE: then the record is current, and not given
 * back. */
int64_t dsec_take(dsec_receiver *v, double timeout_s)
{
    dsec_reader *r = v->reader;
    int rc = dsec_next(r, timeout_s, 0);
    if (rc)
        return rc;
    if (r->now.nbytes > v->room)
        return DSEC_TOO_LARGE;
    memcpy(v->into, r->peer->data + r->now.offset, r->now.nbytes);
    rc = dsec_release_to(r, r->read);
    return rc ? rc : (int64_t)r->now.nbytes;
}

/* Give everything below `position` back to the writer. */
int dsec_release_to(dsec_reader *r, uint64_t position)
{
    if (position == r->cursor)
        return DSEC_OK;
    dsec_slot *slot = my_slot(r);
    r->cursor = position;
    /* SYNC POINT cursor: pairs with look_at_cursors(): all reads of the record come before. */
    dsec_store_release(&slot->cursor, position);
    /* SYNC POINT space: pairs with the fence in sleep_for_space(). */
    dsec_fence();
    uint64_t want = dsec_load(&((const dsec_page *)r->peer->page)->space_want);
    if (want != DSEC_AWAKE && want != r->woken && dsec_reached(position, want)) {
        r->woken = want;
        r->mine->wakes++;
        dsec_wake(&slot->cursor, 1u << r->peer->role);
    }
    return DSEC_OK;
}

/* Give the current record back, and all before it. */
int dsec_release(dsec_reader *r)
{
    return reader_closed(r) ? DSEC_CLOSED : dsec_release_to(r, r->read);
}

/* Give back all records before the current one, and keep that. */
int dsec_release_prior(dsec_reader *r)
{
    return reader_closed(r) ? DSEC_CLOSED : dsec_release_to(r, r->start);
}

/* The tail at which about `records` more records of the current size are there. It is kept within
 * half a ring of the cursor: beyond that the writer might wait for space meanwhile. One record is
 * any record: who waits for it must not sleep through one that is smaller than the current. */
static uint64_t want_for(const dsec_reader *r, uint64_t records)
{
    if (records <= 1)
        return r->read + DSEC_GRAIN;
    uint64_t most = r->peer->capacity / 2;
    uint64_t ahead = records > most / DSEC_GRAIN ? most : records * r->now.stride;
    uint64_t held = r->read - r->cursor;
    if (ahead + held > most)
        ahead = most > held ? most - held : 0;
    return r->read + (ahead > DSEC_GRAIN ? ahead : DSEC_GRAIN);
}

/* Sleep until about that many records are ahead, or an urgent one, or the limit. */
int dsec_wait(dsec_reader *r, uint64_t records, double timeout_s)
{
    if (reader_closed(r))
        return DSEC_CLOSED;
    dsec_enter(r->mine, 0, r->mine->seq);
    return wait_for_tail(r, want_for(r, records), timeout_s);
}

/* For who sleeps elsewhere (on an eventfd): ask to be woken. DSEC_OK means that the records are
 * there already and nobody will wake you; DSEC_EMPTY that you will be woken. */
int dsec_arm(dsec_reader *r, uint64_t records)
{
    if (reader_closed(r))
        return DSEC_CLOSED;
    uint64_t tail, want = want_for(r, records);
    dsec_store(&my_slot(r)->want, want);
    /* SYNC POINT want: as in dsec_sleep_for_tail(). */
    dsec_fence();
    int rc = ready(r, want, &tail);
    if (rc != DSEC_EMPTY)
        dsec_store(&my_slot(r)->want, DSEC_AWAKE);
    return rc;
}

int dsec_disarm(dsec_reader *r)
{
    if (reader_closed(r))
        return DSEC_CLOSED;
    dsec_store(&my_slot(r)->want, DSEC_AWAKE);
    return DSEC_OK;
}

/* Bytes published after the current record; 0 where the peer's tail is not to be believed. */
uint64_t dsec_available(dsec_reader *r)
{
    uint64_t tail;
    return reader_closed(r) || dsec_tail(r, r->read, &tail) ? 0 : tail - r->read;
}
