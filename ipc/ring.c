/* The ring's writing side: a single-producer broadcast log with up to eight readers (reader.c).
 *
 * The writer's outbox holds tail and records; each reader's cursor, and the position at which it
 * wants to be woken, lie in that reader's own outbox, which the writer maps read-only. So nobody
 * writes another's segment, and a writer that is killed leaves nothing half visible: what is not
 * below the tail does not exist, and its successor goes on at the tail.
 *
 * Waking: whoever sleeps stores its want, fences, and looks once more; whoever publishes stores its
 * position, fences, and looks at the wants. One of the two sees the other. That a want has been
 * answered is remembered by the answering side, in its own memory.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "ring.h"

#include "record.h"

/* ------------------------------------------------------------------ sizes and the progress word */

/* The rule of record.h for Python. */
uint64_t dsec_stride(uint64_t nbytes)
{
    return dsec_record_stride(nbytes);
}

/* Say which user code runs, and since when. */
void dsec_enter(dsec_outbox *b, uint32_t phase, uint64_t seq)
{
    dsec_page *page = b->page;
    if (!page)
        return;
    if (phase != b->phase || phase != 0) {
        atomic_store_explicit(&page->progress.since_ns, dsec_now_ns(), memory_order_relaxed);
        DSEC_POINT();
    }
    b->phase = phase;
    b->seq = seq;
    /* SYNC POINT progress: pairs with dsec_progress_read() in segment.c; the time goes first. */
    atomic_store_explicit(&page->progress.word, (uint64_t)phase << 56 | (seq & ((1ull << 56) - 1)),
                          memory_order_release);
    DSEC_POINT();
}

/* ------------------------------------------------------------------ the writer */

static const dsec_slot *slot_of(const dsec_outbox *b, uint32_t i)
{
    const dsec_page *page = b->follower[i].peer->page;
    return page ? &page->slot[b->role] : NULL;
}

/* Find the lowest cursor. A cursor above the tail or more than a ring below it can't be. */
static int look_at_cursors(dsec_outbox *b)
{
    uint64_t held = 0;
    for (uint32_t i = 0; i < b->nfollowers; i++) {
        const dsec_slot *slot = slot_of(b, i);
        if (!slot)
            continue;
        /* SYNC POINT cursor: pairs with dsec_release_to(); without it the next payload could
         * overwrite a record that its reader is still reading. */
        uint64_t cursor = dsec_load_acquire(&slot->cursor);
        uint64_t behind = b->tail - cursor;
        if (behind > b->capacity || behind % DSEC_GRAIN)
            return dsec_corrupt(&b->fault, DSEC_BAD_CURSOR, b->follower[i].role, b->tail, cursor,
                                b->tail);
        if (behind > held) {
            held = behind;
            b->lag = i;
        }
    }
    b->floor = b->tail - held;
    return DSEC_OK;
}

/* DSEC_OK when every cursor is at `need` or past it. */
static int has_space(dsec_outbox *b, uint64_t need)
{
    if (dsec_reached(b->floor, need))
        return DSEC_OK;
    int rc = look_at_cursors(b);
    return rc ? rc : dsec_reached(b->floor, need) ? DSEC_OK : DSEC_EMPTY;
}

/* What a writer that found no room waits for: an eighth of the ring more than it needs, so that a
 * full ring costs a wait and a wake-up for many records and not for each. Never more than is sure
 * to come free: a reader that waits for the next record may hold up to half a ring. */
static uint64_t roomy(const dsec_outbox *b, uint64_t need, uint64_t stride)
{
    uint64_t extra = b->capacity / 8, most = b->capacity / 2 - stride;
    return need + (extra < most ? extra : most);
}

static int sleep_for_space(dsec_outbox *b, uint64_t need, int64_t deadline)
{
    dsec_page *page = b->page;
    int rc;
    for (;;) {
        dsec_store(&page->space_want, need);
        /* SYNC POINT space: pairs with the fence in dsec_release_to(): want then cursor here,
         * cursor then want there, so that no wake-up is lost between them. */
        dsec_fence();
        rc = has_space(b, need);
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
        b->sleeps++;
        const dsec_word *slowest = &slot_of(b, b->lag)->cursor;
        if (dsec_sleep(slowest, b->floor, 1u << b->role, deadline) == DSEC_INTERRUPTED) {
            rc = has_space(b, need);
            rc = rc == DSEC_EMPTY ? DSEC_INTERRUPTED : rc;
            break;
        }
    }
    dsec_store(&page->space_want, DSEC_AWAKE);
    return rc;
}

static int wait_for_space(dsec_outbox *b, uint64_t need, double timeout_s)
{
    if (!(timeout_s > 0))
        return DSEC_TIMEOUT;
    int64_t deadline = dsec_deadline(timeout_s);
    for (uint32_t left = dsec_polls(&b->poll); left > 0; left--) {
        int go_on = dsec_yield(&b->poll, deadline);
        int rc = has_space(b, need);
        if (rc != DSEC_EMPTY)
            return rc;
        if (go_on == DSEC_EMPTY)
            break;
        if (go_on != DSEC_OK)
            return go_on;
    }
    return sleep_for_space(b, need, deadline);
}

/* DSEC_EMPTY became a wait, within which the progress word says that no user code runs. */
static int wait_idle(dsec_outbox *b, uint64_t need, double timeout_s)
{
    uint32_t phase = b->phase;
    dsec_enter(b, 0, b->seq);
    int rc = wait_for_space(b, need, timeout_s);
    dsec_enter(b, phase, b->seq);
    return rc;
}

/* Wait until every reader has given back all below `position`, and with it whatever belongs to
 * those records elsewhere. */
int dsec_passed(dsec_outbox *b, uint64_t position, double timeout_s)
{
    if (!b->page)
        return DSEC_CLOSED;
    int rc = has_space(b, position);
    return rc == DSEC_EMPTY ? wait_idle(b, position, timeout_s) : rc;
}

/* Room for a payload of `nbytes`: its offset in the data area. Nothing is visible to anybody
 * before dsec_commit; a second claim replaces the first. At most half the ring, so that a reader
 * may hold one record and still be given the next. */
int64_t dsec_claim(dsec_outbox *b, uint64_t nbytes, double timeout_s)
{
    if (!b->page)
        return DSEC_CLOSED;
    uint64_t stride = nbytes > UINT32_MAX ? UINT64_MAX : dsec_stride(nbytes);
    if (stride > b->capacity / 2)
        return DSEC_TOO_LARGE;
    uint64_t need = b->tail + stride - b->capacity;
    int rc = has_space(b, need);
    if (rc == DSEC_EMPTY) {
        rc = wait_idle(b, roomy(b, need, stride), timeout_s);
        if (rc == DSEC_TIMEOUT || rc == DSEC_INTERRUPTED)
            rc = dsec_reached(b->floor, need) ? DSEC_OK : rc;
    }
    if (rc)
        return rc;
    b->claimed = nbytes;
    dsec_expect_write(&((dsec_page *)b->page)->tail);
    return (int64_t)((b->tail & (b->capacity - 1)) + DSEC_HEAD);
}

/* Write the header and make the record visible, without waking anybody. */
int dsec_publish(dsec_outbox *b, uint64_t seq, uint32_t kind, uint32_t flags, uint64_t nbytes)
{
    if (!b->page)
        return DSEC_CLOSED;
    if (b->claimed == DSEC_NONE || nbytes > b->claimed)
        return DSEC_MISUSE;
    if (kind == 0 || kind > DSEC_KIND_MAX || flags > UINT16_MAX)
        return DSEC_MISUSE;
    dsec_page *page = b->page;
    _Atomic uint64_t *head = (_Atomic uint64_t *)(void *)(b->data + (b->tail & (b->capacity - 1)));
    const uint64_t words[4] = {b->tail, seq, nbytes | (uint64_t)b->epoch << 32,
                               kind | (uint64_t)flags << 16 | (uint64_t)DSEC_RECORD_MARK << 32};
    for (int i = 0; i < 4; i++) {
        atomic_store_explicit(&head[i], words[i], memory_order_relaxed);
        DSEC_POINT();
    }
    b->tail += dsec_stride(nbytes);
    b->claimed = DSEC_NONE;
    if (flags & (DSEC_FLAG_END | DSEC_FLAG_URGENT))
        dsec_store(&page->urgent, b->tail);
    /* SYNC POINT tail: pairs with dsec_tail(); without it a reader could see the new tail before
     * the header and the payload under it. */
    dsec_store_release(&page->tail, b->tail);
    return DSEC_OK;
}

static void ring_group(dsec_group_page *group)
{
    /* SYNC POINT group: pairs with sleep_for_group() in group.c. The addition is a full fence
     * between the tail before it and the want after it. */
    uint64_t count = atomic_fetch_add_explicit(&group->count.value, 1, memory_order_seq_cst) + 1;
    DSEC_POINT();
    uint64_t want = atomic_load_explicit(&group->want.value, memory_order_seq_cst);
    if (want != DSEC_AWAKE && dsec_reached(count, want))
        dsec_wake(&group->count, DSEC_ALL_BITS);
}

static void wake_eventfd(int fd)
{
    static const uint64_t one = 1;
    int saved = errno;
    /* A full counter or a closed descriptor: either way whoever reads it has been told enough. */
    ssize_t written = write(fd, &one, sizeof one);
    (void)written;
    errno = saved;
}

/* Wake who sleeps and wants what is now published. An urgent record wakes all who sleep. */
void dsec_wake_followers(dsec_outbox *b, uint32_t flags)
{
    int urgent = (flags & (DSEC_FLAG_END | DSEC_FLAG_URGENT)) != 0;
    uint32_t bits = 0;
    for (uint32_t i = 0; i < b->nfollowers; i++) {
        dsec_follower *f = &b->follower[i];
        const dsec_slot *slot = slot_of(b, i);
        uint64_t want = slot ? dsec_load(&slot->want) : DSEC_AWAKE;
        if (want == DSEC_AWAKE || want == f->woken)
            continue;
        if (dsec_reached(b->tail, want))
            f->woken = want; /* wants only grow, so this one can't come again */
        else if (!urgent)
            continue;
        b->wakes++;
        if (f->eventfd >= 0)
            wake_eventfd(f->eventfd);
        else
            bits |= 1u << f->role;
    }
    if (bits)
        dsec_wake(&((dsec_page *)b->page)->tail, bits);
}

/* Publish the claimed record and wake whom it concerns. */
int dsec_commit(dsec_outbox *b, uint64_t seq, uint32_t kind, uint32_t flags, uint64_t nbytes)
{
    int rc = dsec_publish(b, seq, kind, flags, nbytes);
    if (rc)
        return rc;
    /* SYNC POINT want: pairs with the fence in dsec_sleep_for_tail(): tail then want here, want
     * then tail there. */
    dsec_fence();
    dsec_wake_followers(b, flags);
    if (b->group)
        ring_group(b->group);
    const uint8_t *following = b->data + (b->tail & (b->capacity - 1));
    dsec_expect_write(following);
    dsec_expect_write(following + 64);
    return DSEC_OK;
}

/* Claim, copy and commit. Where there is no room within the limit nothing has happened. */
int dsec_put(dsec_sender *s, const uint8_t *data, uint64_t nbytes, double timeout_s)
{
    int64_t offset = dsec_claim(s->box, nbytes, timeout_s);
    if (offset < 0)
        return (int)offset;
    memcpy(s->box->data + offset, data, nbytes);
    int rc = dsec_commit(s->box, s->seq, s->kind, 0, nbytes);
    s->seq += rc == DSEC_OK;
    return rc;
}
