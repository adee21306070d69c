/* The loop over codes, compiled once for each level: LEVEL(name) names its parts, TARGET is the instruction set, LANES
   pairs of numbers are worked on at once. Included by decode.c only.

   Two neighbouring int16 are taken apart within the 32 bits that they fill, the lower one shifted up and the upper one
   masked, both exact as floats and 65536 times too large, which the scales undo. Widening instead would move lanes. */

typedef int16_t LEVEL(words) __attribute__((vector_size(4 * LANES), aligned(2), may_alias));
typedef int32_t LEVEL(pairs) __attribute__((vector_size(4 * LANES)));
typedef float LEVEL(floats) __attribute__((vector_size(4 * LANES), aligned(4), may_alias));

#define WORDS(row) (*(const LEVEL(words) *)((row) + 2 * x))
#define FLOATS(from) (*(const LEVEL(floats) *)(from))
#define ADD_SCALED(sum)                                                                              \
    do {                                                                                             \
        LEVEL(pairs) both = (LEVEL(pairs))(sum);                                                     \
        low += FLOATS(scale + x) * __builtin_convertvector(both << 16, LEVEL(floats));               \
        high += FLOATS(scale + half + x) * __builtin_convertvector(both & -65536, LEVEL(floats));    \
        scale += 2 * half;                                                                           \
    } while (0)

/* out = mean + scales * rows, product rows summed by fours. */
TARGET INLINE void LEVEL(sum_one)(int64_t coarse, int64_t tables, int64_t width, const int16_t *const *rows,
                                  const float *scales, const float *mean, float *out) {
    int64_t half = width / 2;
    for (int64_t x = 0; x < half; x += LANES) {
        const float *scale = scales;
        LEVEL(floats) low = FLOATS(mean + x), high = FLOATS(mean + half + x);
        int64_t k = 0;
        for (; k < coarse; k++) ADD_SCALED(WORDS(rows[k]));
        for (; k + ADDED <= tables; k += ADDED)
            ADD_SCALED((WORDS(rows[k]) + WORDS(rows[k + 1])) + (WORDS(rows[k + 2]) + WORDS(rows[k + 3])));
        if (k < tables) {
            LEVEL(words) rest = WORDS(rows[k]);
            for (k++; k < tables; k++) rest += WORDS(rows[k]);
            ADD_SCALED(rest);
        }
        *(LEVEL(floats) *)(out + x) = low;
        *(LEVEL(floats) *)(out + half + x) = high;
    }
}

TARGET INLINE void LEVEL(sum_all)(const folded_tables *t, const uint8_t *codes, int64_t n, const int64_t *indices,
                                  float *out) {
    const int16_t *rows[MOST_TABLES];
    float vector[MOST_WIDTH];
    const uint8_t *end = codes + n * t->code_bytes;
    int64_t tables = t->coarse + t->parts, head_dim = t->head_dim;
    int direct = t->together == 1 && head_dim == t->width;
    for (int64_t i = 0; i < n; i++) {
        if (i + AHEAD < n) { /* coarse tables are too large for near caches; in a function, gcc drops a prefetch as idle */
            const uint8_t *code = codes + (i + AHEAD) * t->code_bytes;
            const int16_t *table = t->rows;
            for (int64_t c = 0; c < t->coarse; c++, table += t->width << t->coarse_bits) {
                const int16_t *row = table + t->width * number_at(code, end, c * t->coarse_bits, t->coarse_bits);
                for (int64_t x = 0; x < t->width; x += 32) __builtin_prefetch(row + x);
            }
        }
        find_rows(t, codes + i * t->code_bytes, end, rows);
        float *to = direct ? out + indices[i] * head_dim : vector;
        LEVEL(sum_one)(t->coarse, tables, t->width, rows, t->scales, t->mean, to);
        if (!direct)
            for (int64_t g = 0; g < t->together; g++) {
                float *row = out + indices[i * t->together + g] * head_dim;
                for (int64_t x = 0; x < head_dim; x++) row[x] = vector[g * head_dim + x];
            }
    }
}

TARGET static void LEVEL(sum_rows)(const folded_tables *t, const uint8_t *codes, int64_t n, const int64_t *indices,
                                   float *out) {
    const folded_tables paper = {2, 14, 4, 8, 10, 14, 80, 80, 1, t->rows, t->scales, t->mean};
    if (t->coarse == 2 && t->coarse_bits == 14 && t->coarse_bytes == 4 && t->parts == 8 && t->bits == 10 &&
        t->code_bytes == 14 && t->width == 80 && t->head_dim == 80 && t->together == 1)
        LEVEL(sum_all)(&paper, codes, n, indices, out); /* a loop of its own for the paper's codec */
    else
        LEVEL(sum_all)(t, codes, n, indices, out);
}

#undef WORDS
#undef FLOATS
#undef ADD_SCALED
