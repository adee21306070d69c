/* Decompression of explicit memories in C: sums of table rows.

   Plain C for one thread, called through ctypes, which lets other Python threads run meanwhile. Nothing here
   allocates, keeps state or calls a C library. One file serves every processor of an architecture: the loop of
   decode_rows.h is compiled for several instruction sets, and `memory_codec_level` says which ones this processor has.

   Numbers of blocks and rows are checked here before anything is written; numbers in codes are masked to their bits,
   so whatever bytes come, they name rows that exist. */

#include <stdint.h>

/* Inlined where counts and bits are constants, which unrolls and folds all of it. */
#define INLINE static inline __attribute__((always_inline))
#define MOST_TABLES 64
#define MOST_WIDTH 1024
#define ADDED 4 /* product tables whose rows are added as int16 before they become floats */
#define AHEAD 8 /* vectors between asking for coarse rows and needing them */

enum { BAD_BLOCK = -1, BAD_PLACE = -2, BAD_TABLES = -3, BAD_LEVEL = -4 };

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "rows are read as pairs of little-endian numbers"
#endif

/* Tables of `memory_model.codec.native.decoder`. A block's rows, int16 [rows, width], are those of its coarse tables, then of
   its product tables; place 2j of a row is number j of the vector and place 2j + 1 number width / 2 + j. scales, float
   [coarse + ceil(parts / ADDED), width], and mean, float [width], have every number in its own place. width: a
   multiple of 16, of which the first together * head_dim are meant. */
typedef struct {
    int64_t blocks, coarse, coarse_bits, coarse_bytes, parts, bits, code_bytes, width, head_dim, together;
    const int16_t *rows;
    const float *scales, *mean;
} folded_tables;

/* The number of `bits` bits from bit `first` of the little-endian string `code`; nothing at or behind `end` is read. */
INLINE uint32_t number_at(const uint8_t *code, const uint8_t *end, int64_t first, int64_t bits) {
    const uint8_t *at = code + (first >> 3);
    uint32_t word = 0;
    if (end - at >= 4)
        word = at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16 | (uint32_t)at[3] << 24; /* one load */
    else
        for (int64_t byte = 0; byte < end - at; byte++) word |= (uint32_t)at[byte] << (8 * byte);
    return (word >> (first & 7)) & ((1u << bits) - 1);
}

/* The rows that one code names in the tables of its block. */
INLINE void find_rows(const folded_tables *t, const uint8_t *code, const uint8_t *end, const int16_t *block,
                             const int16_t **rows) {
    for (int64_t c = 0; c < t->coarse; c++, block += t->width << t->coarse_bits)
        *rows++ = block + t->width * number_at(code, end, c * t->coarse_bits, t->coarse_bits);
    for (int64_t m = 0; m < t->parts; m++, block += t->width << t->bits)
        *rows++ = block + t->width * number_at(code, end, 8 * t->coarse_bytes + m * t->bits, t->bits);
}

#define LEVEL(name) name##_plain
#define TARGET
#define LANES 4
#include "decode_rows.h"
#undef LEVEL
#undef TARGET
#undef LANES

#if defined(__x86_64__)
#define LEVEL(name) name##_avx2
#define TARGET __attribute__((target("avx2,fma")))
#define LANES 8
#include "decode_rows.h"
#undef LEVEL
#undef TARGET
#undef LANES
#endif

/* Another number with every change below, so that a library of another version is not called. */
int32_t memory_codec_version(void) { return 1; }

/* The best level of this processor: 0 plain, 1 AVX2 with FMA; those below it run too. Wider vectors bring nothing. */
int32_t memory_codec_level(void) {
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return 1;
#endif
    return 0;
}

/* n codes to vectors: code i is of block blocks[i], or 0 where blocks is NULL; its `together` vectors of head_dim floats
   go to rows places[i * together], … of out [out_rows, head_dim]. Returns 0, or what is wrong before it writes. */
int32_t memory_codec_sum_rows(int32_t level, const folded_tables *tables, const uint8_t *codes, int64_t n,
                              const int64_t *blocks, const int64_t *places, float *out, int64_t out_rows) {
    const folded_tables *t = tables;
    if (t->coarse < 0 || t->parts < 1 || t->coarse + t->parts > MOST_TABLES || t->width > MOST_WIDTH || t->width % 16 ||
        t->head_dim * t->together > t->width || t->bits < 1 || t->bits > 16 || t->coarse_bits < 0 ||
        t->coarse_bits > 16 || t->coarse * t->coarse_bits > 8 * t->coarse_bytes ||
        t->parts * t->bits > 8 * (t->code_bytes - t->coarse_bytes))
        return BAD_TABLES;
    if (blocks)
        for (int64_t i = 0; i < n; i++)
            if (blocks[i] < 0 || blocks[i] >= t->blocks) return BAD_BLOCK;
    for (int64_t i = 0; i < n * t->together; i++)
        if (places[i] < 0 || places[i] >= out_rows) return BAD_PLACE;
    if (level < 0 || level > memory_codec_level()) return BAD_LEVEL;
#if defined(__x86_64__)
    if (level == 1) return sum_rows_avx2(t, codes, n, blocks, places, out), 0;
#endif
    return sum_rows_plain(t, codes, n, blocks, places, out), 0;
}
