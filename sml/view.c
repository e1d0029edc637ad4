/* Readers of a pool: find an atom by its id, copy it, and prove the copy.
 *
 * A reader writes nothing and waits for nobody. The body is proven by its checksum over the private
 * copy, and by the generation that the cell and the header must agree on; only if both hold is it
 * given out. Where they don't and the cell has changed meanwhile, the writer has freed or reused
 * the place, and the reader looks again; where it has not, the segment is damaged. So whatever lies
 * in the segment, the outcome is an atom that was published, or a code, after a bounded time.
 */
#include <string.h>

#include "pool.h"

/* The sum in a header: over the header without it, and over the body. */
uint64_t asa_sum(const asa_head *head, uint64_t body_sum)
{
    asa_head bare = *head;
    bare.sum = body_sum;
    return asa_xxh3(&bare, sizeof bare);
}

uint64_t asa_ident_sum(const asa_ident *ident)
{
    const uint8_t *from = (const uint8_t *)ident + sizeof ident->magic;
    return asa_xxh3(from, offsetof(asa_ident, sum) - sizeof ident->magic);
}

static int view_fail(asa_view *v, int what, uint64_t found, uint64_t wanted)
{
    return asa_fail(&v->fault, what, 0, found, wanted);
}

/* Validate a segment's header page; `size` is what the mapping has. */
int asa_view_open(asa_view *v, const void *base, uint64_t size)
{
    memset(v, 0, sizeof *v);
    if (size < 2 * ASA_PAGE)
        return view_fail(v, ASA_BAD_SIZE, size, 2 * ASA_PAGE);
    asa_ident ident;
    memcpy(&ident, base, sizeof ident); /* once: what follows looks only at this copy */
    uint64_t magic = asa_load(&ident.magic);
    if (magic == ASA_MAKING || magic == 0)
        return view_fail(v, ASA_BAD_UNFINISHED, magic, ASA_MAGIC);
    if (magic != ASA_MAGIC)
        return view_fail(v, ASA_BAD_MAGIC, magic, ASA_MAGIC);
    if (ident.version < ASA_VERSION)
        return view_fail(v, ASA_BAD_OLD, ident.version, ASA_VERSION);
    if (ident.version > ASA_VERSION)
        return view_fail(v, ASA_BAD_NEW, ident.version, ASA_VERSION);
    if (ident.sum != asa_ident_sum(&ident))
        return view_fail(v, ASA_BAD_IDENT, ident.sum, asa_ident_sum(&ident));
    if (ident.size != size)
        return view_fail(v, ASA_BAD_SIZE, size, ident.size);
    uint64_t cells = size / ASA_CELL; /* no more than that: no product below can overflow */
    if (ident.ncells == 0 || ident.ncells > cells || ident.data % ASA_GRAIN || ident.data > size ||
        ident.data < ASA_PAGE + ident.ncells * ASA_CELL || ident.grains == 0 ||
        ident.grains != (size - ident.data) / ASA_GRAIN || size / ASA_GRAIN > UINT32_MAX)
        return view_fail(v, ASA_BAD_GEOMETRY, ident.ncells, ident.data);
    v->base = (uint8_t *)(uintptr_t)base;
    v->size = size;
    v->ncells = ident.ncells;
    v->data = ident.data;
    v->grains = ident.grains;
    v->space[0] = ident.space[0];
    v->space[1] = ident.space[1];
    v->created_s = ident.created_s;
    v->flags = ident.flags;
    v->epoch = (uint32_t)asa_load(&((const asa_page *)base)->epoch);
    return ASA_OK;
}

static void copy_header(asa_head *to, const uint8_t *from)
{
    uint64_t words[ASA_HEAD / 8];
    for (int i = 0; i < ASA_HEAD / 8; i++)
        words[i] = asa_load((const asa_word *)(const void *)from + i);
    memcpy(to, words, ASA_HEAD);
}

/* The copy may be torn by the writer; its checksum will tell. A body has no word that is used by
 * itself, so it doesn't matter in what pieces it is read, except to the thread sanitizer. */
static void copy_body(void *to, const uint8_t *from, uint64_t nbytes)
{
#ifdef __SANITIZE_THREAD__
    const asa_word *word = (const asa_word *)(const void *)from;
    uint8_t *at = to;
    for (uint64_t done = 0; done < nbytes; done += 8, word++) {
        uint64_t value = asa_load(word); /* bodies are padded to their grain, so it is there */
        memcpy(at + done, &value, nbytes - done < 8 ? nbytes - done : 8);
    }
#else
    memcpy(to, from, nbytes);
    atomic_signal_fence(memory_order_seq_cst);
#endif
}

/* Copy the header that a cell leads to, if it and its body lie inside the data area. */
int asa_bounds(asa_view *v, uint64_t cell, uint64_t word, asa_head *head)
{
    uint64_t at = asa_grain_of(word) * ASA_GRAIN;
    if (at < v->data || at + ASA_HEAD > v->size)
        return asa_fail(&v->fault, ASA_BAD_CELL, cell, at, v->data);
    copy_header(head, v->base + at);
    if (at + ASA_HEAD + head->nbytes > v->size)
        return asa_fail(&v->fault, ASA_BAD_LENGTH, cell, head->nbytes, v->size - at - ASA_HEAD);
    if (asa_generation_of(word) != (head->generation & 0x3fff))
        return asa_fail(&v->fault, ASA_BAD_GENERATION, cell, head->generation & 0x3fff,
                        asa_generation_of(word));
    return ASA_OK;
}

static uint64_t acquire_cell(const asa_word *cell)
{
    /* SYNC POINT publish: pairs with the store of the word in asa_put(); without it a reader could
     * see the cell before the body that it leads to, and call a good atom damaged. */
    return atomic_load_explicit(cell, memory_order_acquire);
}

/* Does the cell still lead to where it led before what was just copied was read? */
static int unchanged(const asa_word *cell, uint64_t word)
{
    /* SYNC POINT recycle: pairs with the fence at the beginning of write_body(); without it a
     * reader could see another atom's bytes and still the old cell, and call them damage. */
    atomic_thread_fence(memory_order_acquire);
    return ((asa_load(cell) ^ word) & ~(3ull << 62)) == 0;
}

/* Walk the cells from an id's home to the one that leads to it. ASA_OK: out->cell leads to
 * out->head. ASA_ABSENT, ASA_CORRUPT and ASA_BUSY as everywhere. */
static int probe(asa_view *v, uint64_t id, asa_found *out, int *tries)
{
    const asa_word *cells = asa_cells(v);
    uint64_t mixed = asa_mix(id), at = asa_home(mixed, v->ncells);
    for (uint64_t steps = 0; steps < v->ncells; steps++, at = at + 1 == v->ncells ? 0 : at + 1) {
        uint64_t word;
        int rc;
        do {
            word = acquire_cell(&cells[at]);
            if (word == ASA_EMPTY)
                return ASA_ABSENT;
            rc = ASA_ABSENT;
            if (word == ASA_TOMB || asa_tag_of(word) != (mixed & 0xffff))
                break;
            rc = asa_bounds(v, at, word, &out->head);
            if (rc == ASA_OK && out->head.id == id)
                break;
        } while (!unchanged(&cells[at], word) && ++*tries < ASA_TRIES);
        if (*tries >= ASA_TRIES)
            return ASA_BUSY;
        if (rc == ASA_CORRUPT)
            return rc;
        if (rc == ASA_OK && out->head.id == id) {
            out->cell = at;
            out->word = word;
            out->marks = asa_marks_of(word);
            out->room = asa_room(out->head.nbytes);
            return ASA_OK;
        }
    }
    return ASA_ABSENT;
}

/* The header of an atom. It is proven by no checksum, so it serves lists and sizes only. */
int asa_find(asa_view *v, uint64_t id, asa_found *out)
{
    int tries = 0;
    return v->base ? probe(v, id, out, &tries) : ASA_MISUSE;
}

/* Copy an atom's body into `buffer`, proven. One of six things happens: ASA_OK; ASA_ABSENT;
 * ASA_SMALL, and out->head.nbytes says what it takes; ASA_CORRUPT, and v->fault says what;
 * ASA_BUSY, the writer reused the place under every single try; ASA_MISUSE. */
int asa_get(asa_view *v, uint64_t id, asa_found *out, void *buffer, uint64_t room)
{
    const asa_word *cells = asa_cells(v);
    if (v->base == NULL)
        return ASA_MISUSE;
    for (int tries = 0; tries < ASA_TRIES; tries++) {
        int rc = probe(v, id, out, &tries);
        if (rc != ASA_OK)
            return rc;
        uint64_t nbytes = out->head.nbytes, cell = out->cell;
        if (nbytes > room) {
            if (unchanged(&cells[cell], out->word))
                return ASA_SMALL;
            continue;
        }
        copy_body(buffer, v->base + asa_grain_of(out->word) * ASA_GRAIN + ASA_HEAD, nbytes);
        uint64_t sum = asa_sum(&out->head, asa_xxh3(buffer, nbytes));
        if (sum == out->head.sum)
            return ASA_OK;
        if (unchanged(&cells[cell], out->word))
            return asa_fail(&v->fault, ASA_BAD_SUM, cell, sum, out->head.sum);
    }
    return ASA_BUSY;
}

/* asa_get into the desk's buffer. Returns how many bytes, or what asa_get returns. */
int64_t asa_fetch(asa_desk *d, uint64_t id)
{
    int rc = asa_get(d->view, id, &d->found, d->buffer, d->room);
    return rc == ASA_OK ? (int64_t)d->found.head.nbytes : rc;
}

/* Is this private copy of a header and its body, fetched by whatever means and in whatever order,
 * the atom `id` that cell `word` led to? For readers on other machines: a READ of the cell, a READ
 * of the atom, and this; nothing has to be read again. ASA_BUSY: it isn't, or not any more. */
int asa_prove(uint64_t word, uint64_t id, const void *copy, uint64_t room)
{
    asa_head head;
    if (room < ASA_HEAD)
        return ASA_SMALL;
    memcpy(&head, copy, ASA_HEAD);
    if (head.id != id || asa_generation_of(word) != (head.generation & 0x3fff))
        return ASA_BUSY;
    if (head.nbytes > room - ASA_HEAD)
        return ASA_SMALL;
    const uint8_t *body = (const uint8_t *)copy + ASA_HEAD;
    return asa_sum(&head, asa_xxh3(body, head.nbytes)) == head.sum ? ASA_OK : ASA_BUSY;
}

/* What cell number `cell` leads to; ASA_ABSENT if to nothing. For lists of all there is. */
int asa_look(asa_view *v, uint64_t cell, asa_found *out)
{
    if (v->base == NULL || cell >= v->ncells)
        return ASA_MISUSE;
    const asa_word *at = &asa_cells(v)[cell];
    for (int tries = 0; tries < ASA_TRIES; tries++) {
        uint64_t word = acquire_cell(at);
        if (!asa_is_atom(word))
            return ASA_ABSENT;
        int rc = asa_bounds(v, cell, word, &out->head);
        if (!unchanged(at, word))
            continue;
        out->cell = cell;
        out->word = word;
        out->marks = asa_marks_of(word);
        out->room = rc == ASA_OK ? asa_room(out->head.nbytes) : 0;
        return rc;
    }
    return ASA_BUSY;
}

/* Up to `most` atoms from cell `*cell` on; moves it on. Less than `most` means that was all. */
uint64_t asa_scan(asa_view *v, uint64_t *cell, asa_found *out, uint64_t most)
{
    uint64_t count = 0;
    for (; count < most && v->base && *cell < v->ncells; ++*cell)
        count += asa_look(v, *cell, &out[count]) == ASA_OK;
    return count;
}
