/* Which of a hundred thousand vectors of int8 are nearest to queries of int16, before they are compared exactly. */

#include <stdint.h>

#define INLINE static inline __attribute__((always_inline))

/* Puts one into a heap whose root has the least score, in place of that. */
INLINE void replace_least(float *scores, int64_t *rows, int64_t size, float score, int64_t row) {
    int64_t at = 0;
    for (int64_t child; (child = 2 * at + 1) < size; at = child) {
        child += child + 1 < size && scores[child + 1] < scores[child];
        if (scores[child] >= score) break;
        scores[at] = scores[child], rows[at] = rows[child];
    }
    scores[at] = score, rows[at] = row;
}

INLINE void nearest(const int8_t *rows, const float *scales, int64_t n, int64_t width, const int16_t *queries,
                    int64_t count, float *scores, int64_t *found, int64_t k) {
    for (int64_t r = 0; r < n; r++, rows += width)
        for (int64_t q = 0; q < count; q++) {
            const int16_t *query = queries + q * width;
            int32_t sum = 0;
            for (int64_t x = 0; x < width; x++) sum += (int16_t)rows[x] * query[x];
            float score = (float)sum * scales[r];
            if (score > scores[q * k]) replace_least(scores + q * k, found + q * k, k, score, r);
        }
}

#if defined(__x86_64__)
/* Wider vectors than these would wait for the memory that the rows lie in. */
__attribute__((target("avx2"))) static void nearest_avx2(const int8_t *rows, const float *scales, int64_t n,
                                                         int64_t width, const int16_t *queries, int64_t count,
                                                         float *scores, int64_t *found, int64_t k) {
    nearest(rows, scales, n, width, queries, count, scores, found, k);
}
#endif

/* found[q]: numbers of the `k` rows with the largest scores[q] = scales[r] * (rows[r] . queries[q]), in no order.
   rows int8 [n, width], queries int16 [count, width]; whoever calls keeps the sums within int32, `k` within n, and
   begins with scores [count, k] of minus infinity. level: at most memory_codec_level. */
void memory_codec_nearest(int32_t level, const int8_t *rows, const float *scales, int64_t n, int64_t width,
                          const int16_t *queries, int64_t count, float *scores, int64_t *found, int64_t k) {
#if defined(__x86_64__)
    if (level >= 1) return nearest_avx2(rows, scales, n, width, queries, count, scores, found, k), (void)0;
#endif
    nearest(rows, scales, n, width, queries, count, scores, found, k);
}
