/* Segments: formatting, mapping, opening the handles, and reading the header page from outside.
 *
 * Here every header word of another process is validated, once, when its segment is opened.
 */
#define _GNU_SOURCE
#include <string.h>
#include <sys/mman.h>

#include "ring.h"

static int good_capacity(uint64_t capacity)
{
    if (capacity == 0)
        return 1;
    if (capacity < DSEC_CAPACITY_MIN || capacity > DSEC_CAPACITY_MAX)
        return 0;
    return (capacity & (capacity - 1)) == 0;
}

/* Write a fresh header page. `start` is the position at which this ring, and every ring that the
 * role will read, begins: 0 but in tests of the wrap-around. */
int dsec_format(void *base, uint64_t size, uint32_t role, uint32_t epoch, uint64_t start)
{
    dsec_page *page = base;
    if (size < DSEC_PAGE || !good_capacity(size - DSEC_PAGE) || start % DSEC_GRAIN)
        return DSEC_MISUSE;
    memset(page, 0, sizeof *page);
    page->ident = (dsec_ident){.magic = DSEC_MAGIC,
                               .version = DSEC_VERSION,
                               .role = role,
                               .epoch = epoch,
                               .size = size,
                               .capacity = size - DSEC_PAGE,
                               .start = start};
    if (role == DSEC_GROUP_ROLE) {
        dsec_store(&((dsec_group_page *)base)->want, DSEC_AWAKE);
        return DSEC_OK;
    }
    dsec_store(&page->tail, start);
    dsec_store(&page->urgent, start);
    dsec_store(&page->space_want, DSEC_AWAKE);
    atomic_store_explicit(&page->progress.since_ns, dsec_now_ns(), memory_order_relaxed);
    for (int i = 0; i < DSEC_ROLES; i++) {
        dsec_store(&page->slot[i].cursor, start);
        dsec_store(&page->slot[i].want, DSEC_AWAKE);
    }
    return DSEC_OK;
}

/* Map a segment: header page, data area, and the data area once more behind it, so that a record
 * which begins before the end of the ring is contiguous. NULL and errno on failure. */
void *dsec_map(int fd, uint64_t size, int writable)
{
    uint64_t capacity = size - DSEC_PAGE;
    int prot = writable ? PROT_READ | PROT_WRITE : PROT_READ;
    int hole = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, fixed = MAP_SHARED | MAP_FIXED;
    uint8_t *base = mmap(NULL, size + capacity, PROT_NONE, hole, -1, 0);
    if (base == MAP_FAILED)
        return NULL;
    if (mmap(base, size, prot, fixed, fd, 0) == MAP_FAILED ||
        (capacity && mmap(base + size, capacity, prot, fixed, fd, DSEC_PAGE) == MAP_FAILED)) {
        munmap(base, size + capacity);
        return NULL;
    }
    return base;
}

/* The size comes first so that Python can bind it and hand the function to ffi.gc. */
void dsec_unmap(uint64_t size, void *base)
{
    munmap(base, size + (size - DSEC_PAGE));
}

void *dsec_map_page(int fd, int writable)
{
    int prot = writable ? PROT_READ | PROT_WRITE : PROT_READ;
    void *page = mmap(NULL, DSEC_PAGE, prot, MAP_SHARED, fd, 0);
    return page == MAP_FAILED ? NULL : page;
}

void dsec_unmap_page(void *page)
{
    munmap(page, DSEC_PAGE);
}

/* The identity words are immutable after dsec_format, but a peer may break that rule at any
 * moment: they are read once, through volatile, and only the copy is used. */
static int check_ident(const dsec_page *page, uint64_t size, uint32_t role, dsec_ident *copy,
                       dsec_fault *fault)
{
    const volatile dsec_ident *shared = &page->ident;
    copy->magic = shared->magic;
    copy->version = shared->version;
    copy->role = shared->role;
    copy->epoch = shared->epoch;
    copy->size = shared->size;
    copy->capacity = shared->capacity;
    if (copy->magic != DSEC_MAGIC)
        return dsec_corrupt(fault, DSEC_BAD_MAGIC, role, 0, copy->magic, DSEC_MAGIC);
    if (copy->version != DSEC_VERSION)
        return dsec_corrupt(fault, DSEC_BAD_VERSION, role, 0, copy->version, DSEC_VERSION);
    if (copy->role != role)
        return dsec_corrupt(fault, DSEC_BAD_ROLE, role, 0, copy->role, role);
    if (copy->size != size || copy->capacity != size - DSEC_PAGE || !good_capacity(copy->capacity))
        return dsec_corrupt(fault, DSEC_BAD_SIZE, role, 0, copy->size, size);
    return DSEC_OK;
}

/* Open my outbox in `base`. A fresh one begins at its start; one that a dead incarnation left is
 * continued at its tail: what lay behind the tail was never published and does not exist.
 * `epoch` < 0 keeps the segment's epoch for the records. */
int dsec_outbox_open(dsec_outbox *b, void *base, uint64_t size, uint32_t role, int64_t epoch)
{
    dsec_page *page = base;
    dsec_ident ident;
    memset(b, 0, sizeof *b);
    int rc = check_ident(page, size, role, &ident, &b->fault);
    if (rc)
        return rc;
    uint64_t tail = dsec_load(&page->tail);
    if (tail % DSEC_GRAIN)
        return dsec_corrupt(&b->fault, DSEC_BAD_TAIL, role, tail, tail, tail - tail % DSEC_GRAIN);
    b->page = page;
    b->data = (uint8_t *)base + DSEC_PAGE;
    b->capacity = ident.capacity;
    b->tail = b->floor = tail;
    b->claimed = DSEC_NONE;
    b->role = role;
    b->epoch = epoch < 0 ? ident.epoch : (uint32_t)epoch;
    b->poll.spin = 1000;
    dsec_store(&page->space_want, DSEC_AWAKE);
    for (int i = 0; i < DSEC_ROLES; i++)
        dsec_store(&page->slot[i].want, DSEC_AWAKE);
    atomic_store_explicit(&page->crash.written, 0, memory_order_relaxed);
    dsec_enter(b, 0, 0);
    return DSEC_OK;
}

/* Only the handle forgets the memory; it is unmapped when the last view of it is gone. */
void dsec_outbox_close(dsec_outbox *b)
{
    if (b->page)
        dsec_crash_forget(b->page);
    b->page = NULL;
    b->data = NULL;
    b->group = NULL;
    b->nfollowers = 0;
}

int dsec_peer_open(dsec_peer *p, void *base, uint64_t size, uint32_t role, dsec_fault *fault)
{
    dsec_ident ident;
    memset(p, 0, sizeof *p);
    int rc = check_ident(base, size, role, &ident, fault);
    if (rc)
        return rc;
    p->page = base;
    p->data = (uint8_t *)base + DSEC_PAGE;
    p->capacity = ident.capacity;
    p->role = role;
    p->epoch = ident.epoch;
    return DSEC_OK;
}

void dsec_peer_close(dsec_peer *p)
{
    p->page = NULL;
    p->data = NULL;
}

/* Read `peer`'s ring from where this role's cursor on it stands in my outbox. */
int dsec_reader_open(dsec_reader *r, dsec_outbox *mine, dsec_peer *peer)
{
    memset(r, 0, sizeof *r);
    if (!mine->page || !peer->page)
        return DSEC_CLOSED;
    if (peer->role >= DSEC_ROLES || mine->role >= DSEC_ROLES || peer->capacity == 0)
        return DSEC_MISUSE;
    uint64_t cursor = dsec_load(&((dsec_page *)mine->page)->slot[peer->role].cursor);
    if (cursor % DSEC_GRAIN)
        return dsec_corrupt(&r->fault, DSEC_BAD_CURSOR, mine->role, cursor, cursor, 0);
    r->mine = mine;
    r->peer = peer;
    r->read = r->start = r->cursor = r->known = cursor;
    r->woken = DSEC_AWAKE;
    r->now.stride = DSEC_GRAIN;
    uint64_t tail;
    return dsec_tail(r, cursor, &tail);
}

/* From now on this reader's cursor holds the writer back. A second call for the same role
 * replaces the first (a new incarnation of that reader). */
int dsec_add_follower(dsec_outbox *b, dsec_peer *peer, int eventfd)
{
    if (!b->page || !peer->page)
        return DSEC_CLOSED;
    if (peer->role >= DSEC_ROLES || peer->role == b->role)
        return DSEC_MISUSE;
    const dsec_page *theirs = peer->page;
    /* SYNC POINT cursor: as in look_at_cursors() of ring.c: the reader may be at work already. */
    uint64_t cursor = dsec_load_acquire(&theirs->slot[b->role].cursor);
    if (b->tail - cursor > b->capacity || cursor % DSEC_GRAIN)
        return dsec_corrupt(&b->fault, DSEC_BAD_CURSOR, peer->role, b->tail, cursor, b->tail);
    uint32_t i = 0;
    while (i < b->nfollowers && b->follower[i].role != peer->role)
        i++;
    if (i == DSEC_ROLES)
        return DSEC_FULL;
    if (i == b->nfollowers)
        b->nfollowers++;
    b->follower[i] = (dsec_follower){
        .peer = peer, .woken = DSEC_AWAKE, .eventfd = eventfd, .role = peer->role};
    if (!dsec_reached(cursor, b->floor) || b->nfollowers == 1)
        b->floor = cursor;
    return DSEC_OK;
}

int dsec_remove_follower(dsec_outbox *b, uint32_t role)
{
    for (uint32_t i = 0; i < b->nfollowers; i++)
        if (b->follower[i].role == role) {
            b->follower[i] = b->follower[--b->nfollowers];
            return DSEC_OK;
        }
    return DSEC_EMPTY;
}

/* Phase, sequence number and the time since when. If the words are being changed meanwhile, the
 * time may be younger than the phase, never older: a hang is seen late rather than invented. */
void dsec_progress_read(const void *base, uint32_t *phase, uint64_t *seq, int64_t *since_ns)
{
    const dsec_page *page = base;
    /* SYNC POINT progress: pairs with dsec_enter() in ring.c; without it an old time could be
     * seen with a new phase. */
    uint64_t word = atomic_load_explicit(&page->progress.word, memory_order_acquire);
    *since_ns = atomic_load_explicit(&page->progress.since_ns, memory_order_relaxed);
    *phase = (uint32_t)(word >> 56);
    *seq = word & ((1ull << 56) - 1);
}

/* Note what is counted from record `seq` on, which is about to be published, or which is the last,
 * by who has taken over there. The later of two notes is written over if somebody died before he
 * had published what it is about; else the older one. */
void dsec_tally_note(dsec_outbox *b, uint64_t seq, uint64_t episodes, uint64_t lost)
{
    dsec_tally *both = ((dsec_page *)b->page)->tally;
    uint64_t one = atomic_load_explicit(&both[0].seq, memory_order_relaxed);
    uint64_t other = atomic_load_explicit(&both[1].seq, memory_order_relaxed);
    uint64_t later = one > other ? one : other;
    dsec_tally *mine = &both[(one == later) == (later >= seq) ? 0 : 1];
    atomic_store_explicit(&mine->seq, DSEC_NONE, memory_order_relaxed);
    atomic_thread_fence(memory_order_release);
    mine->episodes = episodes;
    mine->lost = lost;
    /* SYNC POINT tally: pairs with dsec_tally_read(): who sees the number sees the counts. */
    atomic_store_explicit(&mine->seq, seq, memory_order_release);
}

/* What counts at record `seq`, the last that is published; 0 of everything if nothing was noted. */
void dsec_tally_read(const void *base, uint64_t seq, uint64_t *episodes, uint64_t *lost)
{
    const dsec_page *page = base;
    uint64_t newest = 0;
    int found = 0;
    *episodes = *lost = 0;
    for (int i = 0; i < 2; i++) {
        const dsec_tally *each = &page->tally[i];
        /* SYNC POINT tally: pairs with dsec_tally_note(). */
        uint64_t from = atomic_load_explicit(&each->seq, memory_order_acquire);
        if (from > seq || (found && from < newest))
            continue;
        found = 1;
        newest = from;
        *episodes = each->episodes;
        *lost = each->lost;
    }
}

int dsec_crash_read(const void *base, dsec_crash_info *out)
{
    const dsec_page *page = base;
    /* SYNC POINT crash: pairs with write_record() in crash.c, so that the fields are whole. */
    if (atomic_load_explicit(&page->crash.written, memory_order_acquire) != 1)
        return DSEC_EMPTY;
    const volatile dsec_crash_info *shared = &page->crash.info;
    out->signo = shared->signo;
    out->code = shared->code;
    out->phase = shared->phase;
    out->epoch = shared->epoch;
    out->address = shared->address;
    out->ip = shared->ip;
    out->seq = shared->seq;
    out->time_ns = shared->time_ns;
    out->sender = shared->sender;
    return DSEC_OK;
}

/* Where a ring began, where it ends, and where its role's cursors on the others' rings stand: for
 * who takes over from a dead writer, before it may write itself. */
void dsec_positions(const void *base, uint64_t *start, uint64_t *tail, uint64_t *cursors)
{
    const dsec_page *page = base;
    /* SYNC POINT tail: as in dsec_tail(): the writer may live yet, and what lies below is whole. */
    *tail = dsec_load_acquire(&page->tail);
    *start = page->ident.start;
    for (int i = 0; i < DSEC_ROLES; i++)
        cursors[i] = dsec_load(&page->slot[i].cursor);
}

/* Offsets in the header page, for tests and for people with a hex editor. */
uint64_t dsec_page_offset(int what)
{
    switch (what) {
    case 0: return offsetof(dsec_page, tail);
    case 1: return offsetof(dsec_page, urgent);
    case 2: return offsetof(dsec_page, space_want);
    case 3: return offsetof(dsec_page, progress);
    case 4: return offsetof(dsec_page, slot);
    case 5: return offsetof(dsec_page, crash);
    default: return sizeof(dsec_page);
    }
}
