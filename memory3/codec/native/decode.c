/* Decompression of explicit memories in C: sums of table rows, or a matrix product of bytes.

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

enum { BAD_INDEX = -2, BAD_TABLES = -3, BAD_LEVEL = -4 };

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "rows are read as pairs of little-endian numbers"
#endif

/* Tables of `FoldedTables` in library.py. rows, int16 [rows, width], are those of the coarse tables, then of the product
   tables; index 2j of a row is number j of the vector and index 2j + 1 number width / 2 + j. scales, float
   [coarse + ceil(parts / ADDED), width], and mean, float [width], have the numbers in the order of the vector. width: a
   multiple of 16, of which the first together * head_dim are meant. */
typedef struct {
    int64_t coarse, coarse_bits, coarse_bytes, parts, bits, code_bytes, width, head_dim, together;
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

/* The rows that one code names in the tables. */
INLINE void find_rows(const folded_tables *t, const uint8_t *code, const uint8_t *end, const int16_t **rows) {
    const int16_t *table = t->rows;
    for (int64_t c = 0; c < t->coarse; c++, table += t->width << t->coarse_bits)
        *rows++ = table + t->width * number_at(code, end, c * t->coarse_bits, t->coarse_bits);
    for (int64_t m = 0; m < t->parts; m++, table += t->width << t->bits)
        *rows++ = table + t->width * number_at(code, end, 8 * t->coarse_bytes + m * t->bits, t->bits);
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

/* Tables of `ByteProduct` in library.py. words, uint8 [parts, 1 << bits, row]: each part's numbers first; row a multiple
   of 8. first [parts]: where a part's numbers begin in the vector that is multiplied; it has 4 * quads numbers. basis,
   int8 [panels, quads, COLUMNS, 4]: four neighbouring rows of the matrix side by side. Quads up to ends [groups] share
   scales, float [groups, panels * COLUMNS]. mean float [panels * COLUMNS]. head_dim: a multiple of 16. */
typedef struct {
    int64_t parts, bits, code_bytes, row, quads, panels, groups, head_dim, together;
    const uint8_t *words;
    const int64_t *first;
    const int8_t *basis;
    const int64_t *ends;
    const float *scales, *mean;
} product_tables;

#define TILE 8     /* codes are padded to a multiple of this, and ROWS divides it */
#define COLUMNS 48 /* numbers of a panel; LANES * VECTORS divides it */

typedef uint64_t eight_words __attribute__((aligned(1), may_alias));

/* n codes as rows of bytes, `stride` apart: every part overwrites what the last left behind its numbers. Part by part,
   because one table stays in the nearest cache and all of them do not. */
static void gather_words(const product_tables *t, const uint8_t *codes, int64_t n, uint8_t *to, int64_t stride) {
    const uint8_t *end = codes + n * t->code_bytes;
    const int64_t parts = t->parts, bits = t->bits, code_bytes = t->code_bytes, row = t->row;
    const uint8_t *table = t->words;
    for (int64_t m = 0; m < parts; m++, table += row << bits) {
        uint8_t *column = to + t->first[m];
        if (2 * n >> bits) /* most of the table is read, in no order */
            for (int64_t x = 0; x < row << bits; x += 64) __builtin_prefetch(table + x);
        for (int64_t i = 0; i < n; i++) {
            const uint8_t *from = table + row * number_at(codes + i * code_bytes, end, m * bits, bits);
            for (int64_t x = 0; x < row; x += 8)
                *(eight_words *)(column + i * stride + x) = *(const eight_words *)(from + x);
        }
    }
}

/* The product's instruction: to each of LANES sums four products of bytes, those of the codes without a sign on x86 and
   with one on ARM. In assembly: the header of the intrinsics requires a C library's. ROWS codes and VECTORS sums of each
   stay in registers. */
#if defined(__x86_64__)
#define PRODUCT __attribute__((target("avx512f")))
#define ADD_PRODUCTS(sum, code, basis) __asm__("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(code), "v"(basis))
enum { LANES = 16, ROWS = 8, VECTORS = 3 };
#elif defined(__aarch64__)
#define PRODUCT __attribute__((target("arch=armv8.2-a+dotprod")))
#define ADD_PRODUCTS(sum, code, basis) __asm__("sdot %0.4s, %1.16b, %2.16b" : "+w"(sum) : "w"(code), "w"(basis))
enum { LANES = 4, ROWS = 4, VECTORS = 4 };
#endif

#if defined(PRODUCT)
typedef float floats __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
typedef int32_t quads __attribute__((vector_size(4 * LANES), aligned(4), may_alias));

/* sums[r][v] = mean + the products of ROWS rows of `codes` with the columns from `column` on, which lie in one panel. */
PRODUCT static void multiply_tile(const product_tables *t, int64_t column, const int32_t *codes, int64_t stride,
                                  floats sums[ROWS][VECTORS]) {
    const int8_t *basis = t->basis + 4 * (column / COLUMNS * t->quads * COLUMNS + column % COLUMNS);
    const float *scales = t->scales + column, *mean = t->mean + column;
    for (int64_t group = 0, q = 0; group < t->groups; group++, scales += t->panels * COLUMNS) {
        quads sum[ROWS][VECTORS];
#pragma GCC unroll 8
        for (int r = 0; r < ROWS; r++)
#pragma GCC unroll 4
            for (int v = 0; v < VECTORS; v++) sum[r][v] = (quads){0};
        for (; q < t->ends[group]; q++, basis += 4 * COLUMNS) {
            quads row[VECTORS];
#pragma GCC unroll 4
            for (int v = 0; v < VECTORS; v++) row[v] = ((const quads *)basis)[v];
#pragma GCC unroll 8
            for (int r = 0; r < ROWS; r++) {
                quads code = (quads){0} + codes[r * stride + q];
#pragma GCC unroll 4
                for (int v = 0; v < VECTORS; v++) ADD_PRODUCTS(sum[r][v], code, row[v]);
            }
        }
#pragma GCC unroll 8
        for (int r = 0; r < ROWS; r++)
#pragma GCC unroll 4
            for (int v = 0; v < VECTORS; v++)
                sums[r][v] = (group ? sums[r][v] : *(const floats *)(mean + LANES * v)) +
                             *(const floats *)(scales + LANES * v) * __builtin_convertvector(sum[r][v], floats);
    }
}

PRODUCT static void multiply_all(const product_tables *t, const uint8_t *gathered, int64_t n, int64_t stride,
                                 const int64_t *indices, float *out) {
    floats sums[ROWS][VECTORS];
    for (int64_t first = 0; first < t->panels * COLUMNS; first += LANES * VECTORS)
        for (int64_t i = 0; i < n; i += ROWS) {
            multiply_tile(t, first, (const int32_t *)(gathered + stride * i), stride / 4, sums);
            for (int64_t v = 0; v < VECTORS; v++) {
                int64_t column = first + LANES * v, head = column / t->head_dim;
                if (head >= t->together) break;
                for (int64_t r = 0; r < ROWS && i + r < n; r++)
                    *(floats *)(out + indices[(i + r) * t->together + head] * t->head_dim + column % t->head_dim) =
                        sums[r][v];
            }
        }
}
#endif

/* Tables of `ScaledCodes` in library.py: float [together * head_dim] each. A number is offset + step * code; codes of 4
   bits lie two to a byte, low nibble first. head_dim: even where codes have 4 bits. */
typedef struct {
    int64_t bits, code_bytes, head_dim, together;
    const float *offset, *step;
} scaled_tables;

INLINE void scale_codes(const scaled_tables *t, const uint8_t *codes, int64_t n, const int64_t *indices, float *out) {
    const int64_t d = t->head_dim, half = t->bits == 4, bytes = half ? d / 2 : d;
    for (int64_t i = 0; i < n; i++, codes += t->code_bytes)
        for (int64_t group = 0; group < t->together; group++) {
            const uint8_t *code = codes + group * bytes;
            const float *offset = t->offset + group * d, *step = t->step + group * d;
            float *row = out + indices[i * t->together + group] * d;
            if (half)
                for (int64_t x = 0; x < bytes; x++) {
                    row[2 * x] = offset[2 * x] + step[2 * x] * (float)(code[x] & 15);
                    row[2 * x + 1] = offset[2 * x + 1] + step[2 * x + 1] * (float)(code[x] >> 4);
                }
            else
                for (int64_t x = 0; x < d; x++) row[x] = offset[x] + step[x] * (float)code[x];
        }
}

#if defined(__x86_64__)
__attribute__((target("avx2,fma"))) static void scale_codes_avx2(const scaled_tables *t, const uint8_t *codes, int64_t n,
                                                                 const int64_t *indices, float *out) {
    scale_codes(t, codes, n, indices, out);
}

__attribute__((target("avx512f"))) static void scale_codes_avx512(const scaled_tables *t, const uint8_t *codes,
                                                                  int64_t n, const int64_t *indices, float *out) {
    scale_codes(t, codes, n, indices, out);
}
#endif

/* Another number with every change below, so that a library of another version is not called. */
int32_t memory_codec_version(void) { return 7; }

/* The best level of this processor: 0 plain, 1 AVX2 with FMA, 2 AVX-512 with VNNI, or ARM's dot products; those below
   it run too. Sums of rows are the same at level 2 as at 1: wider vectors bring nothing there. */
int32_t memory_codec_level(void) {
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("avx512f") &&
        __builtin_cpu_supports("avx512vnni"))
        return 2;
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return 1;
#elif defined(__aarch64__) && defined(__linux__)
    uint64_t features; /* Linux answers for the register, which programs cannot read */
    __asm__("mrs %0, ID_AA64ISAR0_EL1" : "=r"(features));
    if (features >> 44 & 15) return 2;
#endif
    return 0;
}

/* n codes to vectors: the `together` vectors of code i, of head_dim floats, go to rows indices[i * together], … of out
   [out_rows, head_dim]. Returns 0, or what is wrong before it writes. */
int32_t memory_codec_sum_rows(int32_t level, const folded_tables *tables, const uint8_t *codes, int64_t n,
                              const int64_t *indices, float *out, int64_t out_rows) {
    const folded_tables *t = tables;
    if (t->coarse < 0 || t->parts < 1 || t->coarse + t->parts > MOST_TABLES || t->width > MOST_WIDTH || t->width % 16 ||
        t->head_dim * t->together > t->width || t->bits < 1 || t->bits > 16 || t->coarse_bits < 0 ||
        t->coarse_bits > 16 || t->coarse * t->coarse_bits > 8 * t->coarse_bytes ||
        t->parts * t->bits > 8 * (t->code_bytes - t->coarse_bytes))
        return BAD_TABLES;
    for (int64_t i = 0; i < n * t->together; i++)
        if (indices[i] < 0 || indices[i] >= out_rows) return BAD_INDEX;
    if (level < 0 || level > memory_codec_level()) return BAD_LEVEL;
#if defined(__x86_64__)
    if (level >= 1) return sum_rows_avx2(t, codes, n, indices, out), 0;
#endif
    return sum_rows_plain(t, codes, n, indices, out), 0;
}

/* n codes to vectors by a matrix product of bytes, sums in int32. indices, out: as in memory_codec_sum_rows. gathered:
   memory of the caller for 4 * quads + row bytes of each code, their number rounded up to a multiple of TILE. Returns
   0, or what is wrong before it writes. */
int32_t memory_codec_multiply(int32_t level, const product_tables *tables, const uint8_t *codes, int64_t n,
                              const int64_t *indices, float *out, int64_t out_rows, uint8_t *gathered) {
    const product_tables *t = tables;
    if (t->parts < 1 || t->bits < 1 || t->bits > 16 || t->parts * t->bits > 8 * t->code_bytes || t->row % 8 ||
        t->head_dim % 16 || t->head_dim * t->together > t->panels * COLUMNS)
        return BAD_TABLES;
    for (int64_t m = 0; m < t->parts; m++)
        if (t->first[m] < 0 || t->first[m] > 4 * t->quads) return BAD_TABLES;
    for (int64_t g = 0, before = 0; g < t->groups; before = t->ends[g++])
        if (t->ends[g] < before || t->ends[g] > t->quads) return BAD_TABLES;
    for (int64_t i = 0; i < n * t->together; i++)
        if (indices[i] < 0 || indices[i] >= out_rows) return BAD_INDEX;
    if (level < 2 || level > memory_codec_level()) return BAD_LEVEL;
#if defined(PRODUCT)
    int64_t stride = 4 * t->quads + t->row;
    gather_words(t, codes, n, gathered, stride);
    multiply_all(t, gathered, n, stride, indices, out);
#endif
    return 0;
}

/* n codes to vectors, each number by its own step. indices, out: as in memory_codec_sum_rows. Returns 0, or what is wrong
   before it writes. */
int32_t memory_codec_scale(int32_t level, const scaled_tables *tables, const uint8_t *codes, int64_t n,
                           const int64_t *indices, float *out, int64_t out_rows) {
    const scaled_tables *t = tables;
    if ((t->bits != 4 && t->bits != 8) || t->head_dim < 1 || t->together < 1 || (t->bits == 4 && t->head_dim % 2) ||
        t->head_dim * t->together * t->bits > 8 * t->code_bytes)
        return BAD_TABLES;
    for (int64_t i = 0; i < n * t->together; i++)
        if (indices[i] < 0 || indices[i] >= out_rows) return BAD_INDEX;
    if (level < 0 || level > memory_codec_level()) return BAD_LEVEL;
#if defined(__x86_64__)
    if (level >= 2) return scale_codes_avx512(t, codes, n, indices, out), 0;
    if (level == 1) return scale_codes_avx2(t, codes, n, indices, out), 0;
#endif
    return scale_codes(t, codes, n, indices, out), 0;
}
