/* Scores of vectors of int8 for queries of int16: which of a hundred thousand are near, before a few are compared
   exactly. Plain C: a processor's widest instructions would wait for the memory that the vectors lie in. */

#include <stdint.h>

/* out[q, r] = scales[r] * (rows[r] . queries[q]). rows int8 [n, width], queries int16 [count, width]; whoever calls
   keeps the sums within int32. */
void memory_codec_dots(const int8_t *rows, const float *scales, int64_t n, int64_t width, const int16_t *queries,
                       int64_t count, float *out) {
    for (int64_t r = 0; r < n; r++, rows += width)
        for (int64_t q = 0; q < count; q++) {
            const int16_t *query = queries + q * width;
            int32_t sum = 0;
            for (int64_t x = 0; x < width; x++) sum += (int16_t)rows[x] * query[x];
            out[q * n + r] = (float)sum * scales[r];
        }
}
