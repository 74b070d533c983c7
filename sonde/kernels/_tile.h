/* Small matrix products: register tiles of up to six rows and one strip of two vectors, and the transpose of a block. */
#pragma once

#include "_real.h"

enum { STRIP = 2 * LANES };

INLINE int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }
INLINE int64_t whole_strips(int64_t n) { return (n + STRIP - 1) / STRIP * STRIP; }

/* A stage of the work stays a function of its own: inlined into one another they outgrow registers and caches. */
#define STAGE static __attribute__((noinline)) void
#define EACH(i, n) _Pragma("GCC unroll 6") for (int i = 0; i < (n); i++)


typedef vec tile[6][2];

INLINE void tile_zero(int m, tile x) { EACH(i, m) x[i][0] = x[i][1] = (vec){0}; }
INLINE void tile_load(int m, tile x, const real *p, int64_t step) {
    EACH(i, m) x[i][0] = load(p + i * step), x[i][1] = load(p + i * step + LANES);
}
INLINE void tile_store(int m, tile x, real *p, int64_t step) {
    EACH(i, m) store(p + i * step, x[i][0]), store(p + i * step + LANES, x[i][1]);
}

/* x[i] += sum_s a(i, s) b(s), where a(i, s) = a[i * ar + s * as] and row s of the strip b is b + s * bs. */
INLINE void tile_product(int m, tile x, const real *a, int64_t ar, int64_t as, const real *b, int64_t bs, int64_t n) {
    for (int64_t s = 0; s < n; s++) {
        vec left = load(b + s * bs), right = load(b + s * bs + LANES);
        EACH(i, m) {
            vec f = broadcast(a[i * ar + s * as]);
            x[i][0] += f * left;
            x[i][1] += f * right;
        }
    }
}

#if VECTOR_BYTES * 8 / REAL_BITS == 2
#define LOW_HALVES 0, 2
#define HIGH_HALVES 1, 3
#elif VECTOR_BYTES * 8 / REAL_BITS == 4
#define LOW_HALVES 0, 4, 1, 5
#define HIGH_HALVES 2, 6, 3, 7
#elif VECTOR_BYTES * 8 / REAL_BITS == 8
#define LOW_HALVES 0, 8, 1, 9, 2, 10, 3, 11
#define HIGH_HALVES 4, 12, 5, 13, 6, 14, 7, 15
#else
#define LOW_HALVES 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23
#define HIGH_HALVES 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31
#endif
#ifdef __clang__
#define SHUFFLE(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define SHUFFLE(a, b, ...) __builtin_shuffle(a, b, (wvec){__VA_ARGS__})
#endif

/* to[c][r] = from[r][c]; rows and columns are multiples of LANES. */
__attribute__((unused)) STAGE transpose(real *to, int64_t to_step, const real *from, int64_t from_step, int64_t rows, int64_t columns) {
    for (int64_t r = 0; r < rows; r += LANES)
        for (int64_t c = 0; c < columns; c += LANES) {
            vec x[LANES], y[LANES];
            for (int i = 0; i < LANES; i++) x[i] = load(from + (r + i) * from_step + c);
            for (int width = 1; width < LANES; width *= 2) { /* interleaving log2(LANES) times transposes */
                for (int i = 0; i < LANES / 2; i++) {
                    y[2 * i] = SHUFFLE(x[i], x[i + LANES / 2], LOW_HALVES);
                    y[2 * i + 1] = SHUFFLE(x[i], x[i + LANES / 2], HIGH_HALVES);
                }
                for (int i = 0; i < LANES; i++) x[i] = y[i];
            }
            for (int i = 0; i < LANES; i++) store(to + (c + i) * to_step + r, x[i]);
        }
}
