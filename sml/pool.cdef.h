/* What Python sees of the pool's core: handles (process-local), records and functions.
 *
 * cffi parses this text and pool.h includes it, so there is one declaration of each. It holds no
 * preprocessor line and no atomic: the layout of the segment is declared in pool.h.
 */

enum {
    ASA_OK = 0,
    ASA_ABSENT = -1,    /* no atom of this id */
    ASA_EXISTS = -2,    /* an id names one atom for ever */
    ASA_NO_SPACE = -3,  /* no free block is large enough */
    ASA_NO_CELL = -4,   /* as many atoms as the index was made for */
    ASA_TOO_LARGE = -5, /* would not fit an empty pool either */
    ASA_CORRUPT = -6,   /* what lies there was never published so; see asa_fault */
    ASA_BUSY = -7,      /* the writer was faster than every try of the reader */
    ASA_SMALL = -8,     /* the caller's buffer is too small; the record says what is needed */
    ASA_MISUSE = -9,    /* closed, or a value outside its range */
    ASA_NO_MEMORY = -10 /* of this process, for its private bookkeeping */
};

enum {
    ASA_PAGE = 4096,    /* the header page of a segment */
    ASA_GRAIN = 64,     /* bodies start at multiples of this */
    ASA_HEAD = 48,      /* the header in front of each body */
    ASA_CELL = 8,       /* one cell of the index */
    ASA_CELLS_AN_ATOM = 2,
    ASA_TRIES = 1000,   /* of a reader, before it says ASA_BUSY */
    ASA_PINNED = 1,     /* marks of an atom, in its cell */
    ASA_STANDBY = 2,
    ASA_PERSIST = 1,    /* flags of a segment: it may outlive its kernel */
    ASA_BOUND = 2       /* its kernel holds it as long as it lives */
};

/* What is wrong with a segment or an atom; `what` is one of these. */
enum {
    ASA_BAD_MAGIC = 1,
    ASA_BAD_UNFINISHED,
    ASA_BAD_OLD,
    ASA_BAD_NEW,
    ASA_BAD_IDENT,
    ASA_BAD_SIZE,
    ASA_BAD_GEOMETRY,
    ASA_BAD_CELL,
    ASA_BAD_LENGTH,
    ASA_BAD_GENERATION,
    ASA_BAD_SUM
};

typedef struct {
    int32_t what;
    uint32_t reserved;
    uint64_t cell;   /* of the index, where that makes sense */
    uint64_t found;
    uint64_t wanted;
} asa_fault;

/* In front of each body, as it lies in the segment and travels to other machines. */
typedef struct {
    uint64_t id;
    uint64_t sum;        /* over the rest of this header, and the body */
    uint32_t nbytes;     /* of the body */
    uint32_t generation; /* of the pool when this was written: no two bodies share id and it */
    uint32_t agent;      /* rank; whose bytes these are, for the reclaimer */
    uint32_t episode;
    uint32_t rollout;
    uint32_t created_s;  /* Unix time */
    uint64_t seq;        /* the boundary: before action seq */
} asa_head;

/* An atom as a reader found it. */
typedef struct {
    asa_head head;
    uint64_t cell;       /* of the index */
    uint64_t word;       /* the cell's value */
    uint64_t room;       /* bytes that it takes in the pool, rounding included */
    uint32_t marks;
    uint32_t reserved;
} asa_found;

/* A segment mapped for reading. All but base and size was copied out when it was opened. */
typedef struct {
    uint8_t *base;
    uint64_t size;
    uint64_t ncells;
    uint64_t data;       /* offset of the data area */
    uint64_t grains;     /* in the data area */
    uint64_t space[2];   /* the name space of its UUIDs */
    uint64_t created_s;
    uint32_t flags;
    uint32_t epoch;      /* of the writer, when it was opened */
    asa_fault fault;
} asa_view;

/* A view with a buffer of its own, for who reads one atom after the other. */
typedef struct {
    asa_view *view;
    uint8_t *buffer;
    uint64_t room;
    asa_found found;
} asa_desk;

/* One block of the data area, live or free; private to the writer. Sizes are in grains. */
typedef struct {
    uint32_t at;
    uint32_t size;
    uint32_t before;     /* neighbours in the data area */
    uint32_t after;
    uint32_t left;       /* neighbours in a list of free blocks */
    uint32_t right;
    uint32_t live;
} asa_block;

typedef struct {
    asa_block *block;
    uint32_t nblocks;    /* in use or on the spare list */
    uint32_t room;       /* allocated */
    uint32_t spare;      /* first of the blocks that describe nothing */
    uint32_t tail;       /* the last block of the data area */
    uint64_t grains;
    uint64_t used;       /* grains in live blocks */
    uint64_t filled[16];  /* a bit for each list that isn't empty */
    uint32_t list[1024];
} asa_arena;

typedef struct {
    asa_view view;
    asa_arena arena;
    uint32_t *block_of;  /* for each cell, the block of its atom */
    uint64_t live;       /* atoms */
    uint64_t tombs;      /* cells that once held one */
    uint64_t payload;    /* bytes of all bodies, without headers and rounding */
    uint64_t generation;
    uint64_t dropped;    /* atoms that were damaged, when this was opened */
    asa_fault fault;
} asa_pool;

/* ---- xxh3.c */
uint64_t asa_xxh3(const void *data, uint64_t nbytes);
uint64_t asa_xxh3_plain(const void *data, uint64_t nbytes);
void asa_xxh3_128(const void *data, uint64_t nbytes, uint8_t *out);

/* ---- arena.c */
int asa_arena_open(asa_arena *a, uint64_t grains);
void asa_arena_close(asa_arena *a);
uint32_t asa_class(uint64_t grains);
uint64_t asa_round(uint64_t grains);
int64_t asa_take(asa_arena *a, uint64_t grains);
void asa_give(asa_arena *a, uint32_t index);
int asa_arena_check(const asa_arena *a);

/* ---- pool.c: the one writer */
int asa_format(void *base, uint64_t size, uint64_t atoms_max, uint32_t flags, const uint64_t *space,
               uint64_t created_s);
int asa_pool_open(asa_pool *p, void *base, uint64_t size, int verify);
void asa_pool_close(asa_pool *p);
int asa_put(asa_pool *p, const asa_head *meta, const void *data, uint64_t nbytes);
int asa_free(asa_pool *p, uint64_t id);
int asa_mark(asa_pool *p, uint64_t id, uint32_t marks);
int64_t asa_lease(asa_pool *p);
uint64_t asa_room(uint64_t nbytes);

/* ---- view.c: any number of readers */
int asa_view_open(asa_view *v, const void *base, uint64_t size);
int asa_find(asa_view *v, uint64_t id, asa_found *out);
int asa_get(asa_view *v, uint64_t id, asa_found *out, void *buffer, uint64_t room);
int asa_prove(uint64_t word, uint64_t id, const void *copy, uint64_t room);
int64_t asa_fetch(asa_desk *d, uint64_t id);
int asa_look(asa_view *v, uint64_t cell, asa_found *out);
uint64_t asa_scan(asa_view *v, uint64_t *cell, asa_found *out, uint64_t most);

/* ---- words.c: for pools on different machines */
uint64_t asa_where(uint64_t id, uint64_t ncells, uint32_t *tag);
void asa_seal(asa_head *head, const void *body);
void asa_word_store(void *at, uint64_t word);
uint64_t asa_word_load(const void *at);
