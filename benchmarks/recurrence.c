/* When each block of a pipeline ends, and nothing else: what no engine can leave out, as a C compiler makes it.
 *
 * The events of sim_core/engine/sequence.py, in the same turns. No waiting is summed, no parameters are waited for.
 */
#include <stdint.h>

enum { DURATION, RECEIVED, RECEIVED_COST, POSTED, POSTED_COST, WRITTEN, COLUMNS = 8 };
enum { ALONE, BLOCKING, IN_PAIRS };

typedef double lanes __attribute__((vector_size(64), aligned(8)));

static inline double larger_one(double a, double b) { return b > a ? b : a; }

static inline lanes larger_lanes(lanes a, lanes b)
{
    for (int lane = 0; lane < 8; lane++)
        a[lane] = b[lane] > a[lane] ? b[lane] : a[lane];
    return a;
}

#define RECURRENCE(NAME, NUMBER, LARGER)                                                                                \
    static inline __attribute__((always_inline)) void NAME##_by(                                                        \
        const int32_t *event, const int32_t *turn, int64_t turns, int64_t rule, const NUMBER *duration,                 \
        const NUMBER *cost, NUMBER *slot, NUMBER *free_of)                                                              \
    {                                                                                                                   \
        for (int64_t each = 0; each < turns; each++, turn += 2) {                                                       \
            NUMBER free = free_of[turn[0]];                                                                             \
            for (int32_t left = turn[1]; left > 0; left--, event += COLUMNS) {                                          \
                NUMBER received = slot[event[RECEIVED]], into = cost[event[RECEIVED_COST]];                             \
                NUMBER start = LARGER(free, received + into);                                                           \
                if (rule != ALONE) {                                                                                    \
                    NUMBER posted = slot[event[POSTED]], other = cost[event[POSTED_COST]];                              \
                    if (rule == BLOCKING)                                                                               \
                        start = LARGER(LARGER(free, posted) + other, LARGER(free, received) + into);                    \
                    else                                                                                                \
                        start = LARGER(start, posted + other);                                                          \
                }                                                                                                       \
                free = start + duration[event[DURATION]];                                                               \
                slot[event[WRITTEN]] = free;                                                                            \
            }                                                                                                           \
            free_of[turn[0]] = free;                                                                                    \
        }                                                                                                               \
    }                                                                                                                   \
                                                                                                                        \
    void NAME(int64_t repeat, int64_t stages, const int32_t *event, const int32_t *turn, int64_t turns, int64_t rule,   \
              const NUMBER *duration, const NUMBER *cost, NUMBER *slot, NUMBER *free_of)                                \
    {                                                                                                                   \
        while (repeat-- > 0) {                                                                                          \
            for (int64_t stage = 0; stage < stages; stage++)                                                            \
                free_of[stage] = (NUMBER){0};                                                                           \
            if (rule == ALONE)                                                                                          \
                NAME##_by(event, turn, turns, ALONE, duration, cost, slot, free_of);                                    \
            else if (rule == BLOCKING)                                                                                  \
                NAME##_by(event, turn, turns, BLOCKING, duration, cost, slot, free_of);                                 \
            else                                                                                                        \
                NAME##_by(event, turn, turns, IN_PAIRS, duration, cost, slot, free_of);                                 \
        }                                                                                                               \
    }

RECURRENCE(one, double, larger_one)
RECURRENCE(eight, lanes, larger_lanes)
