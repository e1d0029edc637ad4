/* What Python sees of the shared-memory core: the handles (process-local) and the functions.
 *
 * cffi parses this text and ring.h includes it, so there is one declaration of each. It holds no
 * preprocessor line and no atomic: everything that lies in shared memory is declared in ring.h.
 * The handles are plain structs, allocated by Python (ffi.new) so that reading a field is one load.
 */

enum {
    DSEC_OK = 0,
    DSEC_EMPTY = -1,       /* nothing there; only where nobody waits */
    DSEC_TIMEOUT = -2,     /* the limit passed */
    DSEC_INTERRUPTED = -3, /* a signal arrived; look at the control channel */
    DSEC_TOO_LARGE = -4,   /* two records of this size do not fit the ring */
    DSEC_CORRUPT = -5,     /* a peer wrote what it may not; see dsec_fault */
    DSEC_CLOSED = -6,      /* the handle was closed */
    DSEC_MISUSE = -7,      /* wrong order of calls or a value outside its range */
    DSEC_FULL = -8,        /* no free slot in a table of this process */
    DSEC_OTHER = -9        /* a record came that is not the one that was due */
};

enum {
    DSEC_PAGE = 4096,        /* the header page of a segment */
    DSEC_HEAD = 32,          /* the header of a record */
    DSEC_GRAIN = 64,         /* records start at multiples of this */
    DSEC_CAPACITY_MIN = 4096,
    DSEC_ROLES = 8,          /* cursor slots in a segment, one for each role it may read */
    DSEC_RECORD_MARK = 0x4452, /* in each record header, so that a hole is told from a record */
    DSEC_KIND_OBS = 1,
    DSEC_KIND_ACTION = 2,
    DSEC_KIND_REWARD = 3,
    DSEC_KIND_END = 4,
    DSEC_KIND_MAX = 4,
    DSEC_FLAG_BOUNDARY = 1,
    DSEC_FLAG_END = 2,
    DSEC_FLAG_URGENT = 4,
    DSEC_FLAG_OVERFLOW = 8,  /* the payload's last part lies outside the ring: overflow.py */
    DSEC_FLAG_REQUEST = 16,  /* the policy's: no action, but something else that is asked for */
    DSEC_END_ASIDE = 8,      /* likewise FLAG_ASIDE, FLAG_FRESH: no step, and no end */
    DSEC_END_FRESH = 16,
    DSEC_END_INFRA = 4,      /* in an env record's flags: FLAG_INFRA of layout.py */
    DSEC_LANES_MAX = 1024,
    DSEC_GROUP_ROLE = 255    /* the role word of a group segment, which is nobody's outbox */
};

/* What was found where it may not be; `what` is one of the DSEC_BAD_ values. */
enum {
    DSEC_BAD_MAGIC = 1,
    DSEC_BAD_VERSION,
    DSEC_BAD_ROLE,
    DSEC_BAD_SIZE,
    DSEC_BAD_TAIL,
    DSEC_BAD_CURSOR,
    DSEC_BAD_POSITION,
    DSEC_BAD_MARK,
    DSEC_BAD_LENGTH,
    DSEC_BAD_SHORT,
    DSEC_BAD_KIND,
    DSEC_BAD_SEQ,
    DSEC_BAD_EPOCH
};

typedef struct {
    int32_t what;
    int32_t role;       /* whose segment it lies in */
    uint64_t position;  /* ring position, where that makes sense */
    uint64_t found;
    uint64_t wanted;    /* the value, or the bound, that would have been right */
} dsec_fault;

/* The header of a record, as it lies in the ring and in the journal. Little endian. */
typedef struct {
    uint64_t position;
    uint64_t seq;
    uint32_t nbytes;
    uint32_t epoch;
    uint16_t kind;
    uint16_t flags;
    uint32_t mark;
} dsec_head;

/* One other process' outbox, mapped read-only. */
typedef struct {
    void *page;
    uint8_t *data;
    uint64_t capacity;
    uint32_t role;
    uint32_t epoch;
} dsec_peer;

/* How a process polls before it sleeps; see dsec_yield(). */
typedef struct {
    uint32_t spin;     /* sched_yield calls before a wait sleeps */
    uint32_t skip;     /* waits that are still to sleep without polling */
    uint32_t penalty;  /* waits that the latest slow yield cost */
} dsec_patience;

/* A reader of my ring, as the writer sees it. */
typedef struct {
    dsec_peer *peer;   /* the reader's outbox, where its cursor and its want lie */
    uint64_t woken;    /* the last want that was answered with a wake-up */
    int32_t eventfd;   /* written instead of the futex wake; -1 where there is none */
    uint32_t role;
} dsec_follower;

typedef struct {
    void *page;
    uint8_t *data;
    void *group;       /* page of the vector's doorbell, or NULL */
    uint64_t capacity;
    uint64_t tail;     /* private copy; the shared one is only ever stored */
    uint64_t floor;    /* lowest follower cursor when last looked at */
    uint64_t claimed;  /* payload bytes of the open claim; UINT64_MAX = none */
    uint32_t lag;      /* index of the follower that is at `floor` */
    uint32_t role;
    uint32_t epoch;    /* written into each record */
    dsec_patience poll;
    uint32_t phase;    /* private copy of the progress word's phase */
    uint32_t nfollowers;
    uint64_t seq;      /* private copy of the progress word's seq */
    uint64_t wakes;    /* futex or eventfd wake-ups given */
    uint64_t sleeps;   /* futex waits entered */
    dsec_follower follower[8];
    dsec_fault fault;
} dsec_outbox;

typedef struct {
    uint64_t seq;
    uint64_t offset;   /* of the payload, in the double mapping of the data area */
    uint32_t nbytes;
    uint32_t epoch;
    uint16_t kind;
    uint16_t flags;
    uint32_t stride;   /* bytes that the record takes in the ring */
} dsec_record;

typedef struct {
    dsec_record now;   /* the current record */
    dsec_outbox *mine; /* my outbox, where my cursor lies */
    dsec_peer *peer;
    uint64_t read;     /* end of the current record: where the next one starts */
    uint64_t known;    /* a tail that was seen and checked: up to it nobody need look again */
    uint64_t start;    /* where the current record starts */
    uint64_t cursor;   /* private copy of the shared cursor */
    uint64_t woken;    /* the last space_want that was answered */
    dsec_fault fault;
} dsec_reader;

/* Messages of one kind, numbered one after the other; see messages.py. */
typedef struct {
    dsec_outbox *box;
    uint64_t seq;      /* of the next message */
    uint32_t kind;
} dsec_sender;

typedef struct {
    dsec_reader *reader;
    uint32_t room;     /* bytes at `into` */
    uint8_t *into;     /* where a message is copied to before its record is given back */
} dsec_receiver;

/* What a runner that answers records says once; see turn.c. */
typedef struct {
    dsec_reader *reader;   /* of what is answered; the answers go to the outbox it belongs to */
    double timeout_s;
    uint64_t ahead;        /* number of the record that is due, less that of the answer before it */
    uint32_t kind;         /* of the answers */
    uint32_t nbytes;       /* and their payload */
    uint32_t due_kind;     /* of what is answered */
    uint32_t due_least;    /* bounds of its payload */
    uint32_t due_most;
    uint32_t phase;        /* of the progress word from when it is there */
    uint32_t keep;         /* 1 = give nothing back */
} dsec_turn;

/* One environment of a lockstep group, as its policy sees it. */
typedef struct {
    dsec_outbox *box;
    dsec_reader *reader;
    uint32_t state;    /* DSEC_LANE_ */
    uint32_t started;  /* has its first record been seen? */
} dsec_lane;

enum {
    DSEC_LANE_OFF,      /* left out */
    DSEC_LANE_IDLE,     /* has answered */
    DSEC_LANE_DUE,      /* its action is to be sent */
    DSEC_LANE_SENT,     /* its action is published, and it may not know yet */
    DSEC_LANE_PENDING,  /* owes an observation */
    DSEC_LANE_ENDED     /* has sent its last */
};

/* A field of every lane's payload, at `offset`, and the caller's array of it: lane i's part lies at
 * memory + i * nbytes. */
typedef struct {
    uint8_t *memory;
    uint32_t offset;
    uint32_t nbytes;
} dsec_piece;

typedef struct {
    void *page;            /* the doorbell, or NULL */
    dsec_lane *lane;
    dsec_piece *action;    /* scattered */
    dsec_piece *sink;      /* gathered */
    uint32_t nlanes;
    uint32_t nactions;
    uint32_t nsinks;
    uint32_t action_bytes; /* payload of an action record */
    uint32_t fixed_bytes;  /* least payload of an observation record; more is extra */
    dsec_patience poll;
    uint32_t busy;         /* a step is under way */
    uint32_t notable;      /* lanes with extra bytes or at their end, in this step */
    uint32_t late;         /* a lane that was missing when last looked at */
    uint32_t bad_lane;     /* the lane that an error is about */
    dsec_fault fault;
} dsec_group;

typedef struct {
    dsec_reader *reader[3]; /* env, policy, reward */
    uint64_t num_envs;
    uint64_t env_reward_off;
    uint64_t env_flags_off;
    uint64_t reward_off;
    double *running;        /* per environment: return of the episode under way */
    double *env_running;    /* the same, of the environment's own rewards */
    double *finished;       /* returns of the episodes that ended in this batch */
    uint64_t finished_max;
    uint64_t next;          /* the transition that comes next */
    uint64_t end_seq;       /* the env's last observation, once seen_end has bit 0 */
    uint32_t epoch[3];
    uint32_t resumed[3];    /* records below `next` may still lie ahead of this cursor */
    uint32_t has_first;     /* observation 0 is taken */
    uint32_t seen_end;      /* bit for each ring */
    uint32_t taken;
    uint32_t bad_ring;
    uint64_t begin[3];      /* the batch, as positions */
    uint64_t end[3];
    uint64_t first;
    uint64_t count;
    uint64_t lost;          /* environments' transitions of the batch that were no steps at all */
    uint64_t episodes;
    double return_sum;
    double env_return_sum;
    uint32_t flags;         /* of all records in the batch, and since */
} dsec_join;

typedef struct {
    uint32_t signo;
    int32_t code;
    uint32_t phase;
    uint32_t epoch;
    uint64_t address;
    uint64_t ip;
    uint64_t seq;
    int64_t time_ns;
    int32_t sender;         /* process that sent the signal; 0: none, or this one; -1: unknown */
} dsec_crash_info;

typedef struct {
    uint64_t address;
    uint32_t nbytes;
    uint32_t entry;
} dsec_region;

/* ---- items.c: objects of Python are `void *` here, and their owners' affair */
enum {
    DSEC_SLOT_PLAIN = 0,  /* None, bool, float, integer: whatever it is now */
    DSEC_SLOT_SAME = 1,   /* still the very same object: what stands before it says it all */
    DSEC_SLOT_SCALAR = 2, /* of the type `same`, in the form `form` */
    DSEC_SLOT_LOOSE = 3,  /* an array, another one each time: loose[number] */
    DSEC_SLOT_WIDE = 4,   /* of memory, at `key`: an integer of 16 bytes */
    DSEC_SLOT_WORD = 5,   /* one of 4 bytes */
    DSEC_SLOT_STILL = 6,  /* `number` bytes which are still those at `same` */
    DSEC_NODE_DICT = 0,
    DSEC_NODE_LIST = 1,
    DSEC_NODE_ARRAY = 2,
    DSEC_NODE_TOLD = 3,   /* somebody else reads it */
    DSEC_NODE_MEMORY = 4, /* some numbers in its memory */
    DSEC_ITEMS_TELL = -1,
    DSEC_ITEMS_OTHER = -2
};

typedef struct {
    const uint8_t *data;
    uint64_t nbytes;
} dsec_text;

typedef struct {
    const char *format;
    const uint64_t *shape;
    uint64_t nbytes;
    uint32_t axes;
    uint32_t readonly;
} dsec_form;

typedef struct {
    void *key; /* by identity; of memory, where it is */
    void *same;
    const dsec_form *form;
    dsec_text before;
    uint32_t kind;
    uint32_t number;
} dsec_item;

typedef struct {
    void *owner;
    const dsec_item *slots;
    uint8_t *room; /* enough for whatever it may hold */
    dsec_text text; /* what it holds */
    dsec_text after; /* the last slot; of an array, before its elements */
    dsec_form form;
    uint32_t count;
    uint32_t kind;
    uint32_t watched; /* its regions show each change; its number is their entry */
} dsec_node;

typedef struct {
    void *object;
    dsec_text before;
    dsec_form form;
} dsec_loose;

typedef struct {
    dsec_node *nodes;
    dsec_loose *loose;
    const dsec_region *regions;
    uint8_t *copies;
    uint32_t *changed;
    uint32_t *told;
    void **arrays; /* those that are nodes */
    void *array_type;
    void *base_key;
    uint8_t *out;
    dsec_text before;
    dsec_text between; /* nodes and loose arrays */
    uint32_t count;
    uint32_t loose_count;
    uint32_t regions_count;
    uint32_t arrays_count;
    uint32_t told_count;
    uint32_t fresh; /* read all of it */
} dsec_items;

int64_t dsec_items_take(dsec_items *t);
int64_t dsec_items_join(dsec_items *t);

/* ---- segment.c */
int dsec_format(void *base, uint64_t size, uint32_t role, uint32_t epoch, uint64_t start);
void *dsec_map(int fd, uint64_t size, int writable);
void dsec_unmap(uint64_t size, void *base);
void *dsec_map_page(int fd, int writable);
void dsec_unmap_page(void *page);
int dsec_outbox_open(dsec_outbox *b, void *base, uint64_t size, uint32_t role, int64_t epoch);
void dsec_outbox_close(dsec_outbox *b);
int dsec_peer_open(dsec_peer *p, void *base, uint64_t size, uint32_t role, dsec_fault *fault);
void dsec_peer_close(dsec_peer *p);
int dsec_reader_open(dsec_reader *r, dsec_outbox *mine, dsec_peer *peer);
int dsec_add_follower(dsec_outbox *b, dsec_peer *peer, int eventfd);
int dsec_remove_follower(dsec_outbox *b, uint32_t role);
void dsec_progress_read(const void *page, uint32_t *phase, uint64_t *seq, int64_t *since_ns);
void dsec_tally_note(dsec_outbox *b, uint64_t seq, uint64_t episodes, uint64_t lost);
void dsec_tally_read(const void *page, uint64_t seq, uint64_t *episodes, uint64_t *lost);
int dsec_crash_read(const void *page, dsec_crash_info *out);
void dsec_positions(const void *page, uint64_t *start, uint64_t *tail, uint64_t *cursors);
uint64_t dsec_page_offset(int what);

/* ---- ring.c */
uint64_t dsec_stride(uint64_t nbytes);
int64_t dsec_claim(dsec_outbox *b, uint64_t nbytes, double timeout_s);
int dsec_passed(dsec_outbox *b, uint64_t position, double timeout_s);
int dsec_commit(dsec_outbox *b, uint64_t seq, uint32_t kind, uint32_t flags, uint64_t nbytes);
int dsec_put(dsec_sender *s, const uint8_t *data, uint64_t nbytes, double timeout_s);
void dsec_enter(dsec_outbox *b, uint32_t phase, uint64_t seq);

/* ---- reader.c */
int dsec_next(dsec_reader *r, double timeout_s, uint32_t then);
int dsec_try_next(dsec_reader *r, uint32_t then);
int dsec_next_many(dsec_reader *r, double timeout_s, uint32_t then, dsec_record *out, int most);
int64_t dsec_take(dsec_receiver *v, double timeout_s);
uint32_t dsec_scan(uint8_t *data, uint64_t capacity, uint64_t position, uint64_t tail,
                   dsec_record *out, uint32_t most);
int dsec_pass(dsec_reader *r, uint64_t seq);
int dsec_release(dsec_reader *r);
int dsec_release_prior(dsec_reader *r);
int dsec_wait(dsec_reader *r, uint64_t records, double timeout_s);
int dsec_arm(dsec_reader *r, uint64_t records);
int dsec_disarm(dsec_reader *r);
uint64_t dsec_available(dsec_reader *r);

/* ---- turn.c */
int64_t dsec_turn_take(dsec_turn *t, uint64_t seq, uint32_t flags);

/* ---- group.c */
int dsec_group_open(void *page, dsec_fault *fault);
int dsec_group_step(dsec_group *g, double timeout_s);
int dsec_group_gather(dsec_group *g, double timeout_s);

/* ---- join.c */
int dsec_join_take(dsec_join *j, uint64_t max_bytes);
int dsec_join_release(dsec_join *j);
int dsec_join_remainder(dsec_join *j);

/* ---- watch.c */
uint32_t dsec_watch(const dsec_region *regions, uint32_t count, uint8_t *copies, uint32_t *changed);

/* ---- wait.c */
extern int64_t dsec_slice_ns;
int dsec_watch_signal(int signo);

/* ---- crash.c */
int dsec_crash_arm(int fd);
int dsec_crash_attach(dsec_outbox *b);
void dsec_crash_at(int64_t seq);
