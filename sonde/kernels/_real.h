/* The number, the vector and the few operations every kernel is written with.

   One source serves float and double (REAL_BITS is 32 or 64) and any CPU: vectors are the compiler's own vector
   extensions, as wide as the target's registers.  `a * b + c` on vectors becomes one fused multiply-add.

   A caller's tensors hold `stored` numbers, read by `load_stored` and written by `store_stored`.  These are reals, or with STORED_BITS 16
   bfloat16, the upper half of a float: arithmetic is in float then too. */
#pragma once

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#ifdef __AVX512BF16__
#include <immintrin.h>
#endif
#ifdef _OPENMP
#include <omp.h>
#endif

#if defined(__AVX512F__)
#define VECTOR_BYTES 64
#elif defined(__AVX__)
#define VECTOR_BYTES 32
#else
#define VECTOR_BYTES 16
#endif

#if REAL_BITS == 64
typedef double real;
typedef int64_t whole; /* the integer as wide as a real */
typedef real stored;
#define SUFFIX _f64
#else
typedef float real;
typedef int32_t whole;
#if STORED_BITS == 16
typedef uint16_t stored;
#ifdef __AVX512BF16__
#define SUFFIX _bf16_pairs
#else
#define SUFFIX _bf16
#endif
#else
typedef real stored;
#define SUFFIX _f32
#endif
#endif

#define LANES ((int)(VECTOR_BYTES / sizeof(real)))

/* The name of an exported function, as in `int EXPORT(separable_forward)(const arguments *a)`. */
#define JOIN_(a, b) a##b
#define JOIN(a, b) JOIN_(a, b)
#define EXPORT(name) __attribute__((visibility("default"))) JOIN(name, SUFFIX)

#define INLINE static inline __attribute__((always_inline))

typedef real vec __attribute__((vector_size(VECTOR_BYTES)));
typedef whole wvec __attribute__((vector_size(VECTOR_BYTES)));
typedef vec vec_anywhere __attribute__((aligned(sizeof(real)), may_alias));

/* A tensor [row, head, time, width]: strides count elements, the last axis is contiguous, data NULL means absent. */
typedef struct {
    stored *data;
    int64_t row, head, time;
} view;

INLINE stored *at(view x, int64_t row, int64_t head, int64_t time) {
    return x.data + row * x.row + head * x.head + time * x.time;
}

INLINE vec load(const real *p) { return *(const vec_anywhere *)p; }
INLINE void store(real *p, vec x) { *(vec_anywhere *)p = x; }
INLINE vec broadcast(real x) { return x - (vec){0}; }

/* The first n lanes; the others are 0 (load) or left alone (store). */
INLINE vec load_some(const real *p, int n) {
    vec x = {0};
    memcpy(&x, p, (size_t)n * sizeof(real));
    return x;
}
INLINE void store_some(real *p, vec x, int n) { memcpy(p, &x, (size_t)n * sizeof(real)); }

#if STORED_BITS == 16
typedef uint32_t bits __attribute__((vector_size(VECTOR_BYTES)));
typedef uint16_t halves __attribute__((vector_size(VECTOR_BYTES / 2)));
typedef halves halves_anywhere __attribute__((aligned(2), may_alias));

/* Rounded to the nearest bfloat16, or the even one of two; not-a-number stays one. */
INLINE halves narrow(vec x) {
#ifdef __AVX512BF16__
    return (halves)_mm512_cvtneps_pbh((__m512)x);
#else
    const bits b = (bits)x, odd = (b >> 16) & 1, nan = (bits)(x != x);
    return __builtin_convertvector((((b + 0x7fff + odd) >> 16) & ~nan) | (nan & 0x7fc0), halves);
#endif
}
INLINE vec widen(halves x) { return (vec)(__builtin_convertvector(x, bits) << 16); }

INLINE vec load_stored(const stored *p) { return widen(*(const halves_anywhere *)p); }
INLINE void store_stored(stored *p, vec x) { *(halves_anywhere *)p = narrow(x); }
INLINE vec load_stored_some(const stored *p, int n) {
    halves x = {0};
    memcpy(&x, p, (size_t)n * sizeof(stored));
    return widen(x);
}
INLINE void store_stored_some(stored *p, vec x, int n) {
    const halves some = narrow(x);
    memcpy(p, &some, (size_t)n * sizeof(stored));
}
#else
INLINE vec load_stored(const stored *p) { return load(p); }
INLINE void store_stored(stored *p, vec x) { store(p, x); }
INLINE vec load_stored_some(const stored *p, int n) { return load_some(p, n); }
INLINE void store_stored_some(stored *p, vec x, int n) { store_some(p, x, n); }
#endif

INLINE vec choose(wvec mask, vec yes, vec no) { return (vec)((mask & (wvec)yes) | (~mask & (wvec)no)); }
INLINE vec vmax(vec a, vec b) { return choose(a > b, a, b); }
INLINE vec vmin(vec a, vec b) { return choose(a < b, a, b); }

INLINE real total(vec x) {
    real part[LANES];
    store(part, x);
    for (int half = LANES / 2; half; half /= 2)
        for (int i = 0; i < half; i++) part[i] += part[i + half];
    return part[0];
}

#if REAL_BITS == 64
#define EXP_LOW -708.3
#define EXP_HIGH 709.79
#define EXP_BIAS 1023
#define EXP_MANTISSA 52
#else
#define EXP_LOW -87.33f
#define EXP_HIGH 88.73f
#define EXP_BIAS 127
#define EXP_MANTISSA 23
#endif

/* x = n ln 2 + r: gives exp(r) and the whole number n. */
INLINE vec exp_parts(vec x, wvec *n) {
#if REAL_BITS == 64
    const real magic = 0x1.8p52, ln2_high = 0x1.62e42fefap-1, ln2_low = 0x1.cf79abc9e3b3ap-40;
    enum { DEGREE = 12 };
#else
    const real magic = 0x1.8p23f, ln2_high = 0x1.62e4p-1f, ln2_low = 0x1.7f7d1cp-20f;
    enum { DEGREE = 7 };
#endif
    static const real inverse_factorial[] = {1.0,           1.0,            1.0 / 2,        1.0 / 6,         1.0 / 24,
                                             1.0 / 120,     1.0 / 720,      1.0 / 5040,     1.0 / 40320,     1.0 / 362880,
                                             1.0 / 3628800, 1.0 / 39916800, 1.0 / 479001600};
    /* Adding `magic` rounds to a whole number and leaves it in the low bits. */
    vec rounded = x * (real)1.44269504088896340736 + magic;
    *n = (wvec)rounded - (wvec)broadcast(magic);
    vec m = rounded - magic;
    vec r = (x - m * ln2_high) - m * ln2_low;
    vec p = broadcast(inverse_factorial[DEGREE]);
    for (int i = DEGREE - 1; i >= 0; i--) p = p * r + inverse_factorial[i];
    return p;
}

/* exp to the last digit or two.  -inf and anything below the smallest normal number give 0, +inf gives inf,
   not-a-number stays one. */
INLINE vec vexp(vec x) {
    wvec n;
    const vec p = exp_parts(choose(x < EXP_LOW, broadcast(EXP_LOW), choose(x > EXP_HIGH, broadcast(EXP_HIGH), x)), &n);
    /* 2^n in two factors: n may be one more than the largest exponent. */
    const wvec half = n >> 1;
    const vec y = p * (vec)((half + EXP_BIAS) << EXP_MANTISSA) * (vec)((n - half + EXP_BIAS) << EXP_MANTISSA);
    return choose(x < EXP_LOW, (vec){0}, y);
}

/* The same in half the time where |x| is known to be at most 85 (float) or 700 (double). */
INLINE vec vexp_near(vec x) {
    wvec n;
    const vec p = exp_parts(x, &n);
    return p * (vec)((n + EXP_BIAS) << EXP_MANTISSA);
}

/* The exponential of one number, equal to a lane of vexp. */
INLINE real rexp(real x) { return vexp(broadcast(x))[0]; }

/* Space for n reals at the start of a cache line; release with free. */
INLINE real *reals(size_t n) {
    void *space = NULL;
    return posix_memalign(&space, 64, (n + 16) * sizeof(real)) ? NULL : space;
}

/* Which thread of the parallel region this is. */
INLINE int worker(void) {
#ifdef _OPENMP
    return omp_get_thread_num();
#else
    return 0;
#endif
}
