/* Threads on one mapping, under the thread sanitizer: it does not see races between processes, and
 * the same code on two threads of one map is the nearest thing. A ring of two records makes both
 * sides sleep and wake all the time; the slice is long, so that a lost wake-up is a time-out.
 */
#include "common.h"

#include <pthread.h>

#define LIMIT_S 20.0

typedef struct {
    dsec_outbox *box;
    dsec_reader *reader;
    uint64_t count;
    uint64_t nbytes;
} job;

static uint64_t size_of(uint64_t seq, uint64_t most)
{
    return (seq * 2654435761u) % (most + 1);
}

static void *produce(void *arg)
{
    job *j = arg;
    for (uint64_t seq = 0; seq < j->count; seq++) {
        uint64_t nbytes = size_of(seq, j->nbytes);
        int64_t offset = dsec_claim(j->box, nbytes, LIMIT_S);
        CHECK(offset >= 0);
        fill(j->box->data + offset, seq, nbytes);
        CHECK(dsec_commit(j->box, seq, DSEC_KIND_OBS, 0, nbytes) == DSEC_OK);
    }
    return NULL;
}

static void *consume(void *arg)
{
    job *j = arg;
    for (uint64_t seq = 0; seq < j->count; seq++) {
        CHECK(dsec_next(j->reader, LIMIT_S, 4) == DSEC_OK);
        CHECK(j->reader->now.seq == seq && j->reader->now.nbytes == size_of(seq, j->nbytes));
        CHECK(intact(j->reader->peer->data + j->reader->now.offset, seq, j->reader->now.nbytes));
        if (seq % 3 != 1) /* now and then hold two */
            CHECK(dsec_release(j->reader) == DSEC_OK);
    }
    return NULL;
}

static void *put_all(void *arg)
{
    job *j = arg;
    uint8_t data[2048];
    dsec_sender sender = {.box = j->box, .kind = DSEC_KIND_OBS};
    while (sender.seq < j->count) {
        uint64_t nbytes = size_of(sender.seq, j->nbytes);
        fill(data, sender.seq, nbytes);
        CHECK(dsec_put(&sender, data, nbytes, LIMIT_S) == DSEC_OK);
    }
    return NULL;
}

/* By turns as many as are there, and one copied out. */
static void *take_all(void *arg)
{
    job *j = arg;
    dsec_reader *r = j->reader;
    uint8_t data[2048];
    dsec_record many[16];
    dsec_receiver receiver = {.reader = r, .room = sizeof data, .into = data};
    for (uint64_t seq = 0; seq < j->count;) {
        CHECK(dsec_take(&receiver, LIMIT_S) == (int64_t)size_of(seq, j->nbytes));
        CHECK(r->now.seq == seq && intact(data, seq, r->now.nbytes));
        if (++seq == j->count)
            break;
        int n = dsec_next_many(r, LIMIT_S, 0, many, 16);
        CHECK(n > 0);
        for (int i = 0; i < n; i++, seq++) {
            CHECK(many[i].seq == seq);
            CHECK(intact(r->peer->data + many[i].offset, seq, many[i].nbytes));
        }
        CHECK(dsec_release(r) == DSEC_OK);
    }
    return NULL;
}

/* One producer, two consumers; returns how often somebody slept. */
static uint64_t stream(uint32_t spin, uint64_t count, uint64_t nbytes, void *(*write)(void *),
                       void *(*read)(void *))
{
    test_segment s[3];
    dsec_outbox box[3];
    dsec_peer peer[3];
    dsec_reader reader[2];
    pthread_t thread[3];
    for (uint32_t role = 0; role < 3; role++) {
        s[role] = segment_make(role, 4096, 0 - 4096ull);
        outbox_open(&box[role], &s[role]);
        peer_open(&peer[role], &s[role]);
        box[role].poll.spin = spin;
    }
    job jobs[3] = {{.box = &box[0], .count = count, .nbytes = nbytes}};
    for (int i = 0; i < 2; i++) {
        CHECK(dsec_add_follower(&box[0], &peer[i + 1], -1) == DSEC_OK);
        CHECK(dsec_reader_open(&reader[i], &box[i + 1], &peer[0]) == DSEC_OK);
        jobs[i + 1] = (job){.reader = &reader[i], .count = count, .nbytes = nbytes};
    }
    CHECK(pthread_create(&thread[0], NULL, write, &jobs[0]) == 0);
    CHECK(pthread_create(&thread[1], NULL, read, &jobs[1]) == 0);
    CHECK(pthread_create(&thread[2], NULL, read, &jobs[2]) == 0);
    for (int i = 0; i < 3; i++)
        CHECK(pthread_join(thread[i], NULL) == 0);
    uint64_t sleeps = box[0].sleeps + box[1].sleeps + box[2].sleeps;
    for (int i = 0; i < 3; i++)
        segment_free(&s[i]);
    return sleeps;
}

/* ------------------------------------------------------------------ lockstep */

#define LANES 2

/* By turns call by call and in one call. */
static void *serve(void *arg)
{
    job *j = arg;
    dsec_turn turn = {.reader = j->reader, .timeout_s = LIMIT_S, .kind = DSEC_KIND_OBS,
                      .nbytes = 8, .due_kind = DSEC_KIND_ACTION, .due_least = 8, .due_most = 8,
                      .phase = 4};
    int64_t offset = dsec_claim(j->box, 8, LIMIT_S);
    uint64_t value = 1;
    for (uint64_t seq = 0;; seq++) {
        CHECK(offset >= 0);
        memcpy(j->box->data + offset, &value, 8);
        if (seq + 1 == j->count)
            break;
        if (seq % 3) {
            int64_t got = dsec_turn_take(&turn, seq, 0);
            CHECK(got >= 0 && got >> 52 == 0);
            offset = (got & 0x3ffffff) * DSEC_GRAIN + DSEC_HEAD;
            CHECK((uint64_t)(got >> 26) * DSEC_GRAIN + DSEC_HEAD == j->reader->now.offset);
        } else {
            CHECK(dsec_commit(j->box, seq, DSEC_KIND_OBS, 0, 8) == DSEC_OK);
            CHECK(dsec_release(j->reader) == DSEC_OK);
            offset = dsec_claim(j->box, 8, LIMIT_S);
            CHECK(dsec_next(j->reader, LIMIT_S, 4) == DSEC_OK && j->reader->now.seq == seq);
        }
        memcpy(&value, j->reader->peer->data + j->reader->now.offset, 8);
        value++;
    }
    CHECK(dsec_commit(j->box, j->count - 1, DSEC_KIND_OBS, 0, 8) == DSEC_OK);
    return NULL;
}

static void lockstep(uint32_t spin, uint64_t count)
{
    test_segment env[LANES], policy[LANES], bell = segment_make(DSEC_GROUP_ROLE, 4096, 0);
    dsec_outbox envbox[LANES], box[LANES];
    dsec_peer envpeer[LANES], peer[LANES];
    dsec_reader envreader[LANES], reader[LANES];
    dsec_lane lane[LANES];
    pthread_t thread[LANES];
    job jobs[LANES];
    uint64_t action[LANES] = {0}, obs[LANES] = {0};
    for (int i = 0; i < LANES; i++) {
        env[i] = segment_make(ROLE_ENV, 4096, 0);
        policy[i] = segment_make(ROLE_POLICY, 4096, 0);
        outbox_open(&envbox[i], &env[i]);
        outbox_open(&box[i], &policy[i]);
        peer_open(&envpeer[i], &env[i]);
        peer_open(&peer[i], &policy[i]);
        envbox[i].poll.spin = spin;
        envbox[i].group = bell.base;
        CHECK(dsec_add_follower(&envbox[i], &peer[i], -1) == DSEC_OK);
        CHECK(dsec_add_follower(&box[i], &envpeer[i], -1) == DSEC_OK);
        CHECK(dsec_reader_open(&reader[i], &box[i], &envpeer[i]) == DSEC_OK);
        CHECK(dsec_reader_open(&envreader[i], &envbox[i], &peer[i]) == DSEC_OK);
        lane[i] = (dsec_lane){.box = &box[i], .reader = &reader[i], .state = DSEC_LANE_PENDING};
        jobs[i] = (job){.box = &envbox[i], .reader = &envreader[i], .count = count};
        CHECK(pthread_create(&thread[i], NULL, serve, &jobs[i]) == 0);
    }
    dsec_piece in = {.memory = (uint8_t *)action, .nbytes = 8};
    dsec_piece out = {.memory = (uint8_t *)obs, .nbytes = 8};
    dsec_group g = {.page = bell.base, .lane = lane, .nlanes = LANES, .action = &in, .nactions = 1,
                    .sink = &out, .nsinks = 1, .action_bytes = 8, .fixed_bytes = 8, .busy = 1,
                    .poll.spin = spin};
    CHECK(dsec_group_gather(&g, LIMIT_S) == DSEC_OK);
    for (uint64_t seq = 1; seq < count; seq++) {
        for (int i = 0; i < LANES; i++) {
            CHECK(obs[i] == seq);
            action[i] = obs[i];
        }
        CHECK(dsec_group_step(&g, LIMIT_S) == DSEC_OK);
    }
    for (int i = 0; i < LANES; i++) {
        CHECK(pthread_join(thread[i], NULL) == 0);
        segment_free(&env[i]);
        segment_free(&policy[i]);
    }
    segment_free(&bell);
}

int main(void)
{
    dsec_slice_ns = 3600 * 1000000000LL;
    uint64_t sleeps = stream(0, 20000, 1000, produce, consume);
    sleeps += stream(0, 20000, 2016, produce, consume);
    sleeps += stream(0, 20000, 1000, put_all, take_all);
    CHECK(sleeps > 1000);
    stream(50, 20000, 300, produce, consume);
    stream(50, 20000, 300, put_all, take_all);
    lockstep(0, 5000);
    lockstep(50, 5000);
    printf("stress: 100000 records to two readers, %llu sleeps, 10000 group steps; no race, no "
           "lost wake-up\n", (unsigned long long)sleeps);
    return 0;
}
