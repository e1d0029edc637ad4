/* The ring against a model, and against peers that write anything, under the address and
 * undefined-behaviour sanitizers. Seeded, so that a failure repeats.
 */
#include "common.h"

#define ROUNDS_MODEL 400
#define ROUNDS_FUZZ 6000

static const uint64_t starts[] = {0, (1ull << 32) - 1024, 0 - 1024ull, (1ull << 63) - 1024};

/* ------------------------------------------------------------------ model */

typedef struct {
    test_segment segment[4];
    dsec_outbox box[4];
    dsec_peer peer[4];
} wires;

static void wires_make(wires *w, uint64_t capacity, uint64_t start)
{
    memset(w, 0, sizeof *w);
    for (uint32_t role = 0; role < 4; role++) {
        w->segment[role] = segment_make(role, capacity, start);
        outbox_open(&w->box[role], &w->segment[role]);
        peer_open(&w->peer[role], &w->segment[role]);
        w->box[role].poll.spin = 1;
    }
}

static void wires_free(wires *w)
{
    for (uint32_t role = 0; role < 4; role++)
        segment_free(&w->segment[role]);
}

static void read_many(dsec_reader *r, uint64_t *seen, uint64_t written, const uint64_t *sizes)
{
    dsec_record many[8];
    uint64_t ahead = written - *seen;
    int rc = dsec_next_many(r, 0, 0, many, 8);
    CHECK(rc == (ahead == 0 ? DSEC_TIMEOUT : ahead < 8 ? (int)ahead : 8));
    for (int i = 0; i < rc; i++, ++*seen) {
        CHECK(many[i].seq == *seen && many[i].nbytes == sizes[*seen]);
        CHECK(intact(r->peer->data + many[i].offset, many[i].seq, many[i].nbytes));
    }
}

/* Returns whether a record was given back, and with it all before it. */
static int take_one(dsec_reader *r, uint64_t *seen, uint64_t written, const uint64_t *sizes)
{
    uint8_t room[1000];
    dsec_receiver v = {.reader = r, .room = sizeof room, .into = room};
    int64_t rc = dsec_take(&v, 0);
    if (*seen == written) {
        CHECK(rc == DSEC_TIMEOUT);
        return 0;
    }
    uint64_t nbytes = sizes[*seen];
    CHECK(r->now.seq == (*seen)++ && r->now.nbytes == nbytes);
    CHECK(rc == (nbytes > sizeof room ? DSEC_TOO_LARGE : (int64_t)nbytes));
    if (rc < 0)
        return 0;
    CHECK(intact(room, r->now.seq, nbytes));
    return 1;
}

static uint64_t model_round(uint64_t *seed)
{
    wires w;
    dsec_reader reader[3];
    uint32_t readers = 1 + (uint32_t)roll_below(seed, 3);
    uint64_t capacity = 4096ull << roll_below(seed, 3);
    wires_make(&w, capacity, starts[roll_below(seed, 4)]);
    for (uint32_t i = 0; i < readers; i++) {
        CHECK(dsec_add_follower(&w.box[0], &w.peer[i + 1], -1) == DSEC_OK);
        CHECK(dsec_reader_open(&reader[i], &w.box[i + 1], &w.peer[0]) == DSEC_OK);
    }
    uint64_t written = 0, seen[3] = {0}, freed[3] = {0}, sizes[4096], used[3] = {0};
    while (written < 150) {
        uint32_t who = (uint32_t)roll_below(seed, readers + 1);
        if (who == readers) {
            uint64_t nbytes = roll_below(seed, capacity / 2 + 1 - DSEC_HEAD);
            uint64_t most = 0;
            for (uint32_t i = 0; i < readers; i++)
                most = used[i] > most ? used[i] : most;
            int fits = most + dsec_stride(nbytes) <= capacity;
            int large = dsec_stride(nbytes) > capacity / 2;
            int64_t offset = dsec_claim(&w.box[0], nbytes, 0);
            CHECK(offset == (large ? DSEC_TOO_LARGE : fits ? offset : DSEC_TIMEOUT));
            if (large || !fits)
                continue;
            CHECK(offset >= 0 && (uint64_t)offset + nbytes <= 2 * capacity);
            fill(w.box[0].data + offset, written, nbytes);
            CHECK(dsec_commit(&w.box[0], written, DSEC_KIND_OBS, 0, nbytes) == DSEC_OK);
            for (uint32_t i = 0; i < readers; i++)
                used[i] += dsec_stride(nbytes);
            sizes[written++] = nbytes;
            continue;
        }
        dsec_reader *r = &reader[who];
        uint64_t how = roll_below(seed, 5);
        if (how == 0) {
            read_many(r, &seen[who], written, sizes);
        } else if (how == 1) {
            if (!take_one(r, &seen[who], written, sizes))
                continue;
            for (; freed[who] < seen[who]; freed[who]++)
                used[who] -= dsec_stride(sizes[freed[who]]);
        } else if (how < 4) {
            int rc = dsec_try_next(r, 0);
            CHECK(rc == (seen[who] < written ? DSEC_OK : DSEC_EMPTY));
            if (rc)
                continue;
            CHECK(r->now.seq == seen[who] && r->now.nbytes == sizes[seen[who]]);
            CHECK(intact(w.peer[0].data + r->now.offset, r->now.seq, r->now.nbytes));
            seen[who]++;
        } else {
            int prior = seen[who] > freed[who] && roll_below(seed, 2);
            CHECK((prior ? dsec_release_prior(r) : dsec_release(r)) == DSEC_OK);
            uint64_t until = seen[who] - (uint64_t)prior;
            for (; freed[who] < until; freed[who]++)
                used[who] -= dsec_stride(sizes[freed[who]]);
        }
    }
    wires_free(&w);
    return written;
}

/* ------------------------------------------------------------------ peers that write anything */

static void spoil(test_segment *s, uint64_t *seed)
{
    uint64_t hits = 1 + roll_below(seed, 6);
    for (uint64_t i = 0; i < hits; i++) {
        uint64_t at, value = roll(seed);
        if (roll_below(seed, 2))
            at = 128 * roll_below(seed, DSEC_PAGE / 128); /* some word of the header page */
        else
            at = DSEC_PAGE + 8 * roll_below(seed, 64); /* some word of the first records */
        if (roll_below(seed, 2)) {
            memcpy(&value, s->base + at, 8); /* a neighbour of what is there is nastier */
            value += (roll_below(seed, 2) ? 64 : 1) * (roll_below(seed, 9) - 4);
        }
        memcpy(s->base + at, &value, 8);
    }
}

static void check_view(const dsec_reader *r)
{
    CHECK(r->now.offset + r->now.nbytes <= 2 * r->peer->capacity);
    uint8_t sum = 0;
    for (uint64_t i = 0; i < r->now.nbytes; i++)
        sum ^= r->peer->data[r->now.offset + i];
    *(volatile uint8_t *)&sum = sum;
}

static void fuzz_ring(wires *w, uint64_t *seed, uint64_t *refused)
{
    dsec_reader r;
    dsec_peer again;
    dsec_fault fault;
    test_segment *s = &w->segment[0];
    *refused += dsec_peer_open(&again, s->base, s->size, 0, &fault) == DSEC_CORRUPT;
    if (dsec_reader_open(&r, &w->box[1], &w->peer[0]) != DSEC_OK) {
        ++*refused;
        return;
    }
    for (int i = 0; i < 40; i++) {
        dsec_record many[4];
        uint64_t how = roll_below(seed, 5);
        int rc = how == 0 ? dsec_wait(&r, roll_below(seed, 9), 0)
                 : how == 1 ? dsec_next_many(&r, 0, 0, many, 4) : dsec_next(&r, 0, 4);
        for (int k = 0; k < (how == 1 ? rc : 0); k++)
            CHECK(many[k].offset + many[k].nbytes <= 2 * r.peer->capacity);
        *refused += rc == DSEC_CORRUPT;
        check_view(&r);
        if (roll_below(seed, 2))
            dsec_release(&r);
        CHECK(dsec_available(&r) <= r.peer->capacity);
    }
    int64_t offset = dsec_claim(&w->box[1], roll_below(seed, 3000), 0);
    CHECK(offset < 0 || (uint64_t)offset < 2 * w->box[1].capacity);
    *refused += offset == DSEC_CORRUPT;
}

static void publish(dsec_outbox *b, uint64_t seq, uint32_t kind, uint32_t flags, uint64_t nbytes)
{
    int64_t offset = dsec_claim(b, nbytes, 0);
    if (offset < 0)
        return;
    memset(b->data + offset, 0, nbytes);
    dsec_commit(b, seq, kind, flags, nbytes);
}

static void fuzz_join(wires *w, uint64_t *seed, uint64_t *refused)
{
    double running[2] = {0}, env_running[2] = {0}, finished[64];
    dsec_reader r[3];
    dsec_join j = {.num_envs = 2,
                   .env_flags_off = 16,
                   .running = running,
                   .env_running = env_running,
                   .finished = finished,
                   .finished_max = 64};
    for (uint32_t i = 0; i < 3; i++) {
        if (dsec_reader_open(&r[i], &w->box[3], &w->peer[i]) != DSEC_OK) {
            ++*refused;
            return;
        }
        j.reader[i] = &r[i];
    }
    for (int i = 0; i < 8; i++) {
        int rc = dsec_join_take(&j, roll_below(seed, 2000));
        *refused += rc == DSEC_CORRUPT;
        CHECK(rc != DSEC_OK || j.episodes <= 64);
        for (int k = 0; k < 3; k++)
            CHECK(rc != DSEC_OK || j.end[k] - j.begin[k] <= w->peer[k].capacity);
        if (rc == DSEC_OK)
            CHECK(dsec_join_release(&j) == DSEC_OK);
    }
    CHECK(dsec_join_remainder(&j) == DSEC_OK);
    for (int k = 0; k < 3; k++)
        CHECK(j.end[k] - j.begin[k] <= w->peer[k].capacity);
}

static void fuzz_group(wires *w, uint64_t *seed, uint64_t *refused)
{
    dsec_reader r;
    uint8_t action[8] = {0}, obs[40];
    if (dsec_reader_open(&r, &w->box[1], &w->peer[0]) != DSEC_OK)
        return;
    dsec_lane lane = {.box = &w->box[1], .reader = &r, .state = DSEC_LANE_PENDING};
    dsec_piece in = {.memory = action, .nbytes = 8}, out = {.memory = obs, .nbytes = 40};
    dsec_group g = {.lane = &lane, .nlanes = 1, .action = &in, .nactions = 1, .action_bytes = 8,
                    .sink = &out, .nsinks = 1, .fixed_bytes = 40, .busy = 1, .poll.spin = 1};
    for (int i = 0; i < 8; i++) {
        int rc = g.busy ? dsec_group_gather(&g, 0) : dsec_group_step(&g, 0);
        *refused += rc == DSEC_CORRUPT;
        check_view(&r);
        if (roll_below(seed, 4) == 0)
            lane.state = DSEC_LANE_IDLE;
    }
}

static uint64_t fuzz_round(uint64_t *seed)
{
    wires w;
    uint64_t refused = 0;
    wires_make(&w, 4096, starts[roll_below(seed, 4)]);
    for (int from = 0; from < 3; from++)
        for (int to = 0; to < 4; to++)
            if (from != to)
                CHECK(dsec_add_follower(&w.box[from], &w.peer[to], -1) == DSEC_OK);
    uint64_t n = roll_below(seed, 10);
    for (uint64_t seq = 0; seq < n; seq++) {
        publish(&w.box[0], seq, DSEC_KIND_OBS, 0, 18 + roll_below(seed, 60));
        publish(&w.box[1], seq, DSEC_KIND_ACTION, 0, roll_below(seed, 40));
        publish(&w.box[2], seq, DSEC_KIND_REWARD, 0, 16);
    }
    spoil(&w.segment[roll_below(seed, 4)], seed);
    fuzz_ring(&w, seed, &refused);
    fuzz_join(&w, seed, &refused);
    fuzz_group(&w, seed, &refused);
    wires_free(&w);
    return refused;
}

int main(void)
{
    uint64_t seed = 0x9e3779b97f4a7c15ull, records = 0, refused = 0;
    for (int i = 0; i < ROUNDS_MODEL; i++)
        records += model_round(&seed);
    for (int i = 0; i < ROUNDS_FUZZ; i++)
        refused += fuzz_round(&seed);
    CHECK(refused > ROUNDS_FUZZ / 10);
    printf("ring_test: %llu records as in the model; %d spoiled peers, %llu refusals, "
           "no bad access\n", (unsigned long long)records, ROUNDS_FUZZ,
           (unsigned long long)refused);
    return 0;
}
