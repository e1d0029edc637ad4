/* What Python sees of the hash chain: where the values of a record lie, and the chain's state. */

enum {
    ASA_LINK = 16,          /* bytes of a value of the chain */
    ASA_MARK_EVERY = 4096,  /* at multiples of this every chain tells its value */
    ASA_POINT = 40           /* of an asa_point */
};

/* One array of a space with a fixed size, of all environments side by side. */
typedef struct {
    uint64_t offset;        /* in the record's payload */
    uint64_t final_offset;  /* in a terminal observation's slot */
    uint64_t nbytes;        /* of one environment */
} asa_leaf;

/* The records of an agent: what is needed to find every value in them. */
typedef struct {
    uint64_t num_envs;
    uint64_t flags_off;     /* in an env record; the environments' own rewards lie at 0 */
    uint64_t obs_bytes;     /* an env record without its tail */
    uint64_t action_bytes;  /* an action without its tail */
    uint64_t final_stride;  /* of the slots of terminal observations */
    uint64_t obs_leaves, obs_variable, action_leaves, action_variable;
    const asa_leaf *obs, *action;
} asa_shape;

/* The chain before transition seq. */
typedef struct {
    uint64_t seq;
    uint8_t value[16];
    uint8_t first[16];      /* hash of the first observations that transition seq leaves; or 0 */
} asa_point;

typedef struct {
    asa_shape shape;
    asa_point at;
    uint64_t bad_role;      /* whose record is none, after ASA_CORRUPT */
    uint64_t bad_seq;
    uint64_t *places;       /* one for each environment */
    uint8_t *scratch;       /* the chain's own */
    uint64_t room;
} asa_chain;

/* Transitions whose parts are hashed already, as arrays of count rows. */
typedef struct {
    uint64_t count;
    uint64_t num_envs;
    const uint64_t *seq;
    const uint8_t *obs;     /* 16 bytes each: what the action led to */
    const uint8_t *action;
    const uint8_t *first;   /* or 16 zeros */
    const uint8_t *reward;  /* 8 * num_envs bytes each */
    const uint8_t *env_reward;
    const uint8_t *flags;   /* num_envs bytes each */
} asa_rows;

/* ---- chain.c */
int asa_chain_take(asa_chain *c, const uint8_t *env, uint64_t env_bytes, const uint8_t *policy,
                   uint64_t policy_bytes, const uint8_t *reward, uint64_t reward_bytes,
                   uint64_t count, asa_point *marks, uint64_t *made);
int asa_chain_rows(asa_point *at, const asa_rows *rows, asa_point *marks, uint64_t *made);
void asa_chain_skip(asa_point *at, uint64_t until, asa_point *marks, uint64_t *made);
void asa_chain_free(asa_chain *c);
void asa_hash_rows(const uint8_t *base, uint64_t nbytes, uint64_t count, uint8_t *out);
