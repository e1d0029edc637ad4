/* What pools on different machines need beside readers and the writer: where an id's search begins,
 * a header that proves a body on its way, and single words that a peer has stored.
 *
 * Such a word has one kind of access: peers store it whole, this process only loads it. It is never
 * the target of another kind of operation here, for those of a processor and of a network card are
 * not atomic to one another.
 */
#include <string.h>

#include "pool.h"

/* The cell at which the search for an id begins; `tag` is what its cell's word has. */
uint64_t asa_where(uint64_t id, uint64_t ncells, uint32_t *tag)
{
    uint64_t mixed = asa_mix(id);
    *tag = (uint32_t)mixed & 0xffff;
    return asa_home(mixed, ncells);
}

/* Fill in the sum of a header whose other fields are there, and prove the body by it. */
void asa_seal(asa_head *head, const void *body)
{
    head->sum = asa_sum(head, asa_xxh3(body, head->nbytes));
}

/* Store a word for a peer: what it wrote before is there first. `at` is aligned. */
void asa_word_store(void *at, uint64_t word)
{
    /* SYNC POINT landing: pairs with asa_word_load(): the body that a peer has pushed is there
     * before the word that says so. A network card's write of eight bytes stands in its place where
     * there is one: its writes arrive in order. */
    atomic_store_explicit((asa_word *)at, word, memory_order_release);
}

/* Load a word that a peer may have stored. */
uint64_t asa_word_load(const void *at)
{
    /* SYNC POINT landing: pairs with asa_word_store(); without it the owner could see the word
     * before the body, and call a whole push half a one. */
    return atomic_load_explicit((const asa_word *)at, memory_order_acquire);
}
