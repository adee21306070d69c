/* The search of FAISS's graph in C: nearest vectors by 8-bit codes, and those that are near scored anew in float32.

   Plain C for one thread, called through ctypes, which lets other Python threads run meanwhile. Nothing here allocates
   or calls a C library; what it writes to is the caller's. The loops of graph_rows.h are compiled for several
   instruction sets, and `memory_graph_level` says which ones this processor has.

   A search is as fast as memory gives it codes: a thousand of a kilobyte each, and every other instruction is hidden
   behind them. So of most codes only the head is read, a quarter: `relation` learns during the search what the rest adds.

   A link that names no row ends its list: FAISS's "no more", -1, and a wrong one are the same. */

#include <stdint.h>

#define INLINE static inline __attribute__((always_inline))
#define AHEAD 3            /* codes between asking for one and needing it */
#define HEADS_AHEAD 8      /* the same for heads of codes */
/* No function: gcc drops one that does nothing but this. A prefetch brings 64 bytes. */
#define ASK_FOR(from, bytes) \
    for (int64_t asked = 0; asked < (int64_t)(bytes); asked += 64) __builtin_prefetch((const char *)(from) + asked)
#define HEAD_SHARE 4       /* a code's head is this part of it */
#define LEAST_DIVIDED 256  /* dimensions from which on codes have a head */
#define SPREADS 3          /* a rest is not read where head and rest would have to be so many spreads above the line */
#define LEARNED_FROM 64    /* pairs before anything is left out */
#define MOST_LINKS 1024    /* of one row on one level */

enum { BAD_GRAPH = -1, BAD_PLACES = -2, BAD_LEVEL = -3 };

/* FAISS's IndexHNSWSQ (QT_8bit_uniform, inner product) where it lies. A row's links on level l are links[i] for i from
   offsets[row] + firsts[l] to offsets[row] + firsts[l + 1], exclusive. codes: uint8 [rows, dimension]. A code stands for
   vmin + vdiff * (code + 0.5) / 255 in every dimension, vdiff > 0: so the order by sum(query * code) is that by score. */
typedef struct {
    int64_t rows, dimension, entry, top;
    const uint8_t *codes;
    const int32_t *links;
    const uint64_t *offsets;
    const int32_t *firsts;
} graph;

typedef struct {
    int64_t row;
    int32_t score;
    int32_t open; /* its links were not looked at yet */
} walked;

/* What searches write to, one for each thread. marks: uint8 [marks_size], none above `epoch`. query: int16 [dimension].
   walk: [most]. rows, scores: [2 * most], first what the graph proposes, then what is found. */
typedef struct {
    int64_t marks_size, epoch, most;
    uint8_t *marks;
    int16_t *query;
    walked *walk;
    int64_t *rows;
    float *scores;
} places;

/* What is searched for. vectors: float [all_rows, dimension], of which the graph has the first `covered`; those behind
   are compared one by one. living: bits, lowest first, NULL where all are alive. candidates: how many rows are kept while
   walking; proposed: how many of them are scored anew; k <= proposed <= candidates <= most. */
typedef struct {
    const float *vectors;
    int64_t covered, all_rows;
    const uint8_t *living;
    int64_t candidates, proposed, k;
} wanted;

INLINE int is_living(const wanted *w, int64_t row) {
    return !w->living || (w->living[row >> 3] >> (row & 7) & 1);
}

/* Puts a scored row into the best `most` of `count`, best first, equal scores by row; returns how many they are now. */
INLINE int64_t keep(int64_t *rows, float *scores, int64_t count, int64_t most, int64_t row, float score) {
    if (count == most) {
        if (!most || scores[count - 1] > score || (scores[count - 1] == score && rows[count - 1] < row)) return count;
        count--;
    }
    int64_t at = count;
    for (; at && (scores[at - 1] < score || (scores[at - 1] == score && rows[at - 1] > row)); at--) {
        scores[at] = scores[at - 1];
        rows[at] = rows[at - 1];
    }
    scores[at] = score;
    rows[at] = row;
    return count + 1;
}

/* What is left of a sum after its head, as a line through the pairs (head, rest) seen so far and a spread around it.
   Which rests are seen depends on their heads alone, so the line is not bent by those that are left out. Pairs are
   taken relative to the first one: the sums of squares keep their digits. */
typedef struct {
    double n, head0, rest0, head, rest, heads, both, rests;
} relation;

INLINE void learn(relation *of, double head, double rest) {
    if (of->n == 0) of->head0 = head, of->rest0 = rest;
    head -= of->head0;
    rest -= of->rest0;
    of->n++;
    of->head += head;
    of->rest += rest;
    of->heads += head * head;
    of->both += head * rest;
    of->rests += rest * rest;
}

/* Whether head and rest are together below `floor`, but for one of some thousand. */
INLINE int is_hopeless(const relation *of, double head, double floor) {
    if (of->n < LEARNED_FROM) return 0;
    double mean = of->head / of->n, heads = of->heads - mean * of->head, both = of->both - mean * of->rest;
    double slope = heads > 0 ? both / heads : 0;
    double spread = (of->rests - of->rest * of->rest / of->n - slope * both) / of->n;
    double below = floor - (head + of->rest0 + of->rest / of->n + slope * (head - of->head0 - mean));
    return below > 0 && below * below > SPREADS * SPREADS * spread;
}

/* The query as int16, as finely as neither a number nor the sum over all codes overflows. */
static void whole_query(const float *query, int64_t dimension, int16_t *out) {
    float largest = 0, sum = 0;
    for (int64_t i = 0; i < dimension; i++) {
        float size = query[i] < 0 ? -query[i] : query[i];
        if (size > largest) largest = size;
        sum += size;
    }
    float scale = 0;
    if (largest > 0 && largest < 1e30f && sum < 1e30f) {
        scale = 32000.0f / largest;
        /* 255 * (scale * sum + dimension / 2), with the rounding, must stay below 2^31 */
        float most = (8.4e6f - (float)dimension) / sum;
        if (most < scale) scale = most;
    }
    for (int64_t i = 0; i < dimension; i++) {
        float x = query[i] * scale;
        out[i] = (int16_t)(x < 0 ? x - 0.5f : x + 0.5f);
    }
}

#define LEVEL(name) name##_plain
#define TARGET
#define LANES 4
#include "graph_rows.h"
#undef LEVEL
#undef TARGET
#undef LANES

#if defined(__x86_64__)
#define LEVEL(name) name##_avx2
#define TARGET __attribute__((target("avx2,fma")))
#define LANES 8
#include "graph_rows.h"
#undef LEVEL
#undef TARGET
#undef LANES
#endif

/* Another number with every change below, so that a library of another version is not called. */
int32_t memory_graph_version(void) { return 1; }

/* The best level of this processor: 0 plain, 1 AVX2 with FMA; those below it run too. */
int32_t memory_graph_level(void) {
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return 1;
#endif
    return 0;
}

/* The k living rows nearest to each of `queries`, float [count, dimension]; see `wanted`. For each query `out` gets 2 + 2k
   numbers: how many were found, how many the graph proposed, k rows, best first, equal scores in the order of rows, and k
   scores as float64. Returns 0, or what is wrong before anything is written. */
int32_t memory_graph_search(int32_t level, const graph *g, places *p, const float *queries, int64_t count,
                            const float *vectors, int64_t covered, int64_t all_rows, const uint8_t *living,
                            int64_t candidates, int64_t proposed, int64_t k, int64_t *out) {
    const wanted w = {vectors, covered, all_rows, living, candidates, proposed, k};
    if (g->dimension < 1 || g->dimension > 1 << 20 || g->rows < 0 || g->top < 0 || g->entry >= g->rows ||
        (g->rows && g->entry < 0))
        return BAD_GRAPH;
    for (int64_t l = 0; l <= g->top; l++)
        if (g->firsts[l + 1] < g->firsts[l] || g->firsts[l + 1] - g->firsts[l] > MOST_LINKS) return BAD_GRAPH;
    if (covered < 0 || covered > g->rows || covered > all_rows || k < 1 || proposed < k || candidates < proposed ||
        candidates > p->most || g->rows > p->marks_size)
        return BAD_PLACES;
    if (level < 0 || level > memory_graph_level()) return BAD_LEVEL;
    for (int64_t i = 0; i < count; i++, out += 2 + 2 * k) {
        const float *query = queries + i * g->dimension;
#if defined(__x86_64__)
        if (level == 1) {
            search_avx2(g, &w, query, p, out);
            continue;
        }
#endif
        search_plain(g, &w, query, p, out);
    }
    return 0;
}
