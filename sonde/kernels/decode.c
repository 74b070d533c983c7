/* One token of each sequence through a whole model: a program of operations, run by one team of threads.

   Decoding is bound by memory: every weight is read once for a token, and the arithmetic is small.  So the team stays
   together for the whole token, weights are read where they lie, and between operations there is a barrier that costs less
   than a microsecond; operations too small to share are done by every thread for itself, into a space of its own.

   An operation reads and writes the fields its function names; a new one is a function and its place in OPERATIONS. */
#include "_curves.h"
#include <sched.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

/* A vector for each sequence: `row` steps from one to the next, `own` from one thread's space to the next (0: shared). */
typedef struct {
    real *data;
    int64_t row, own;
} vectors;

typedef struct {
    int64_t kind, wait; /* wait: nobody goes on before everybody is done with this one */
    vectors x, y, z, m;
    const void *weight; /* [out, in], row after row: reals, or where there are scales [out, in / GROUP] bytes that count these */
    const real *scales;
    const real *a, *b, *c; /* parameters, by the function's own meaning */
    view past, past2, next; /* state before the token, and after it where it is written anew */
    int64_t *used;          /* [rows] tokens kept behind `past`, which has room for so many */
    int64_t in, out, heads, groups, flag, room;
    double scale, low, high;
} operation;

typedef struct {
    const operation *const *operations;
    const int64_t *seen; /* [rows] tokens of each sequence before this one */
    int64_t count, rows, threads;
} arguments;

/* What a thread knows. */
typedef struct {
    int64_t rows, me, team;
    const int64_t *seen;
} crew;

enum { ROWS = 8, STREAMS = 4, TILE = 16, GROUP = 64, BLOCK = 64 };

INLINE real *of(vectors x, const crew *c, int64_t row) { return x.data + c->me * x.own + row * x.row; }

/* This thread's share of n pieces of work. */
INLINE void share(const crew *c, int64_t n, int64_t *from, int64_t *to) {
    *from = n * c->me / c->team;
    *to = n * (c->me + 1) / c->team;
}

INLINE vec some(const real *p, int64_t n) { return n >= LANES ? load(p) : load_some(p, (int)n); }
INLINE void put(real *p, vec x, int64_t n) {
    if (n >= LANES) store(p, x);
    else store_some(p, x, (int)n);
}

/* ---- y = f(W x + b) m + z ----

   A thread reads its rows as STREAMS runs of neighbors side by side, a row of each at a time: the hardware, which fetches
   ahead along a run, is then never at an end of one, where reading a few neighboring rows at once would begin new runs
   all the time.  Measured for rows of 768 numbers: 1.3 times as fast for floats, 2.6 times for bytes. */

/* One row of each run times N vectors -> y[run][vector][TILE]. */
INLINE void dots(const int N, const real *const *w, const real *x, int64_t step, int64_t n, real *y) {
    vec sum[STREAMS][2][2];
    for (int s = 0; s < STREAMS; s++)
        for (int b = 0; b < N; b++) sum[s][b][0] = sum[s][b][1] = (vec){0};
    int64_t i = 0;
    for (; i + 2 * LANES <= n; i += 2 * LANES)
        for (int b = 0; b < N; b++) {
            const vec first = load(x + b * step + i), second = load(x + b * step + i + LANES);
            for (int s = 0; s < STREAMS; s++) {
                sum[s][b][0] += load(w[s] + i) * first;
                sum[s][b][1] += load(w[s] + i + LANES) * second;
            }
        }
    for (; i < n; i += LANES)
        for (int b = 0; b < N; b++)
            for (int s = 0; s < STREAMS; s++) sum[s][b][0] += some(w[s] + i, n - i) * some(x + b * step + i, n - i);
    for (int s = 0; s < STREAMS; s++)
        for (int b = 0; b < N; b++) y[(s * ROWS + b) * TILE] = total(sum[s][b][0] + sum[s][b][1]);
}

/* The next bytes as numbers, one for each lane. */
INLINE vec widened(const int8_t *p) {
#if REAL_BITS == 32 && defined(__AVX512F__)
    return (vec)_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)p)));
#elif REAL_BITS == 32 && defined(__AVX2__)
    return (vec)_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)p)));
#else
    vec x;
    for (int i = 0; i < LANES; i++) x[i] = p[i];
    return x;
#endif
}

/* The same for rows of bytes, with the zeros that fill the last group. */
INLINE void byte_dots(const int N, const int8_t *const *w, const real *const *scales, const real *x, int64_t step, int64_t groups, real *y) {
    vec sum[STREAMS][2];
    for (int s = 0; s < STREAMS; s++)
        for (int b = 0; b < N; b++) sum[s][b] = (vec){0};
    for (int64_t g = 0; g < groups; g++) {
        vec part[STREAMS][2];
        for (int s = 0; s < STREAMS; s++)
            for (int b = 0; b < N; b++) part[s][b] = (vec){0};
        for (int64_t i = g * GROUP; i < (g + 1) * GROUP; i += LANES)
            for (int s = 0; s < STREAMS; s++) {
                const vec v = widened(w[s] + i);
                for (int b = 0; b < N; b++) part[s][b] += v * load(x + b * step + i);
            }
        for (int s = 0; s < STREAMS; s++)
            for (int b = 0; b < N; b++) sum[s][b] += part[s][b] * scales[s][g];
    }
    for (int s = 0; s < STREAMS; s++)
        for (int b = 0; b < N; b++) y[(s * ROWS + b) * TILE] = total(sum[s][b]);
}

/* Row numbers row[] of W times all sequences. */
INLINE void products(const operation *o, const crew *c, const int64_t *row, real *y) {
    const int64_t groups = (o->in + GROUP - 1) / GROUP;
    const real *w[STREAMS], *scales[STREAMS];
    const int8_t *bytes[STREAMS];
    for (int s = 0; s < STREAMS; s++) {
        w[s] = (const real *)o->weight + row[s] * o->in;
        bytes[s] = (const int8_t *)o->weight + row[s] * groups * GROUP;
        scales[s] = o->scales + row[s] * groups;
    }
    for (int64_t b = 0; b < c->rows;) {
        const real *x = of(o->x, c, b);
        real *to = y + b * TILE;
        if (b + 2 <= c->rows) {
            if (o->scales) byte_dots(2, bytes, scales, x, o->x.row, groups, to);
            else dots(2, w, x, o->x.row, o->in, to);
            b += 2;
        } else {
            if (o->scales) byte_dots(1, bytes, scales, x, 0, groups, to);
            else dots(1, w, x, 0, o->in, to);
            b++;
        }
    }
}

INLINE vec gelu(vec x) {
    for (int i = 0; i < LANES; i++) {
#if REAL_BITS == 64
        x[i] = 0.5 * x[i] * erfc(-x[i] * M_SQRT1_2);
#else
        x[i] = 0.5f * x[i] * erfcf(-x[i] * (float)M_SQRT1_2);
#endif
    }
    return x;
}

enum { IDENTITY, SILU, GELU, GELU_TANH, RELU };

INLINE vec activated(vec x, int64_t kind) {
    vec slope;
    switch (kind) {
    case SILU: return silu(x, &slope);
    case GELU: return gelu(x);
    case GELU_TANH: return gelu_tanh(x, &slope);
    case RELU: return choose(x < 0, (vec){0}, x);
    }
    return x;
}

/* y = f(weight x + bias) m + z; flag is f, m and z may be absent.  Operations of one `out` give a thread the same rows. */
static void linear(const operation *o, const crew *c) {
    int64_t from, to;
    share(c, (o->out + TILE - 1) / TILE, &from, &to);
    from *= TILE, to = to * TILE < o->out ? to * TILE : o->out;
    const int64_t run = (to - from + STREAMS - 1) / STREAMS;
    for (int64_t start = 0; start < run; start += TILE) {
        real found[STREAMS * ROWS * TILE];
        const int64_t stop = start + TILE < run ? start + TILE : run;
        for (int64_t i = start; i < stop; i++) {
            int64_t row[STREAMS];
            for (int s = 0; s < STREAMS; s++) row[s] = from + s * run + i < to ? from + s * run + i : to - 1; /* a short run repeats the end */
            products(o, c, row, found + i - start);
        }
        for (int s = 0; s < STREAMS; s++)
            for (int64_t b = 0; b < c->rows; b++) {
                const int64_t first = from + s * run + start, end = from + s * run + stop < to ? from + s * run + stop : to;
                for (int64_t r = first, n = end - first; n > 0; r += LANES, n -= LANES) {
                    vec v = some(found + (s * ROWS + b) * TILE + r - first, n);
                    if (o->b) v += some(o->b + r, n);
                    v = activated(v, o->flag);
                    if (o->m.data) v *= some(of(o->m, c, b) + r, n);
                    if (o->z.data) v += some(of(o->z, c, b) + r, n);
                    put(of(o->y, c, b) + r, v, n);
                }
            }
    }
}

/* ---- small ones, each thread for itself ---- */

/* y = a x / root mean square + b, or with flag a (x - mean) / deviation + b; where z is present, of x silu(z). */
static void norm(const operation *o, const crew *c) {
    for (int64_t row = 0; row < c->rows; row++) {
        const real *x = of(o->x, c, row), *z = o->z.data ? of(o->z, c, row) : NULL;
        real *y = of(o->y, c, row);
        vec sum = {0}, squares = {0};
        for (int64_t i = 0, n = o->in; n > 0; i += LANES, n -= LANES) {
            const vec v = z ? some(x + i, n) * activated(some(z + i, n), SILU) : some(x + i, n);
            put(y + i, v, n);
            sum += v;
        }
        const real mean = o->flag ? total(sum) / o->in : 0;
        for (int64_t i = 0, n = o->in; n > 0; i += LANES, n -= LANES) {
            vec v = some(y + i, n) - mean;
            for (int64_t j = n; j < LANES; j++) v[j] = 0;
            squares += v * v;
        }
        const real shrink = 1 / sqrt(total(squares) / o->in + o->scale);
        for (int64_t i = 0, n = o->in; n > 0; i += LANES, n -= LANES) {
            vec v = (some(y + i, n) - mean) * shrink;
            if (o->a) v *= some(o->a + i, n);
            if (o->b) v += some(o->b + i, n);
            put(y + i, v, n);
        }
    }
}

/* y = cos and then sin of (place * a[i]), i < in; a is double whatever a real is, because places are large. */
static void angles(const operation *o, const crew *c) {
    const double *speed = (const double *)o->a;
    for (int64_t row = 0; row < c->rows; row++)
        for (int64_t i = 0; i < o->in; i++) {
            real *y = of(o->y, c, row);
            y[i] = cos(c->seen[row] * speed[i]);
            y[o->in + i] = sin(c->seen[row] * speed[i]);
        }
}

/* ---- attention over the keys kept so far ---- */

INLINE void turn(real *x, const real *cosines, int64_t half) {
    for (int64_t i = 0; i < half; i++) {
        const real p = x[i], q = x[half + i];
        x[i] = p * cosines[i] - q * cosines[half + i];
        x[half + i] = q * cosines[i] + p * cosines[half + i];
    }
}

INLINE real dot(const real *x, const real *y, int64_t n) {
    vec sum = {0};
    for (int64_t i = 0; n > 0; i += LANES, n -= LANES) sum += some(x + i, n) * some(y + i, n);
    return total(sum);
}

/* One query against n keys: out = sum of softmax(scale q.k + slope distance) v, block by block with the largest score so far. */
static void attend_one(const real *q, const real *k, int64_t k_step, const real *v, int64_t v_step, int64_t n, int64_t width, real scale,
                       real slope, real *out) {
    real top = -INFINITY, sum = 0;
    memset(out, 0, (size_t)width * sizeof(real));
    for (int64_t start = 0; start < n; start += BLOCK) {
        const int64_t count = n - start < BLOCK ? n - start : BLOCK;
        real score[BLOCK], higher = top;
        for (int64_t j = 0; j < count; j++) {
            score[j] = scale * dot(q, k + (start + j) * k_step, width) - slope * (real)(n - 1 - start - j);
            if (!(score[j] <= higher)) higher = score[j];
        }
        for (int64_t j = count; j < BLOCK; j++) score[j] = -INFINITY;
        const real shrink = rexp(top - higher);
        vec mass = {0};
        for (int64_t j = 0; j < BLOCK; j += LANES) {
            const vec weight = vexp(load(score + j) - higher);
            store(score + j, weight);
            mass += weight;
        }
        sum = sum * shrink + total(mass);
        top = higher;
        for (int64_t i = 0; i < width; i += 4 * LANES) {
            const int64_t left = width - i;
            vec acc[4] = {{0}};
            if (left >= 4 * LANES)
                for (int64_t j = 0; j < count; j++)
                    for (int l = 0; l < 4; l++) acc[l] += score[j] * load(v + (start + j) * v_step + i + l * LANES);
            else
                for (int64_t j = 0; j < count; j++)
                    for (int l = 0; l * LANES < left; l++) acc[l] += score[j] * some(v + (start + j) * v_step + i + l * LANES, left - l * LANES);
            for (int l = 0; l < 4 && l * LANES < left; l++) {
                real *p = out + i + l * LANES;
                put(p, some(p, left - l * LANES) * shrink + acc[l], left - l * LANES);
            }
        }
    }
    for (int64_t i = 0; i < width; i++) out[i] /= sum;
}

/* x holds queries of all heads, then keys and values of all groups, each `in` wide; keys and values join those in the rooms
   past and past2, then every head looks at its group's.  z are angles, a slopes by head, both where present. */
static void attend(const operation *o, const crew *c) {
    const int64_t each = o->heads / o->groups, d = o->in;
    int64_t from, to;
    share(c, c->rows * o->groups, &from, &to);
    for (int64_t unit = from; unit < to; unit++) {
        const int64_t row = unit / o->groups, g = unit % o->groups, n = c->seen[row];
        real *q = of(o->x, c, row) + g * each * d;
        real *k = of(o->x, c, row) + (o->heads + g) * d, *v = k + o->groups * d;
        if (o->z.data) {
            const real *cosines = of(o->z, c, row);
            for (int64_t h = 0; h < each; h++) turn(q + h * d, cosines, d / 2);
            turn(k, cosines, d / 2);
        }
        memcpy(at(o->past, row, g, n), k, (size_t)d * sizeof(real));
        memcpy(at(o->past2, row, g, n), v, (size_t)d * sizeof(real));
        for (int64_t h = 0; h < each; h++) {
            const int64_t head = g * each + h;
            attend_one(q + h * d, at(o->past, row, g, 0), o->past.time, at(o->past2, row, g, 0), o->past2.time, n + 1, d, (real)o->scale,
                       o->a ? o->a[head] : 0, of(o->y, c, row) + head * d);
        }
        if (g == 0) o->used[row] = n + 1;
    }
}

/* ---- recurrence with one decay for each head (Mamba-2) ---- */

/* y = silu(sum of the last `flag` inputs, each times its row of a, + b), by channel; past is the tail of inputs, next the one after. */
static void convolve(const operation *o, const crew *c) {
    int64_t from, to;
    share(c, (o->in + TILE - 1) / TILE, &from, &to);
    const int64_t end = to * TILE < o->in ? to * TILE : o->in, tail = o->flag - 1;
    for (int64_t row = 0; row < c->rows; row++)
        for (int64_t i = from * TILE; i < end; i += LANES) {
            const int64_t n = end - i;
            const vec x = some(of(o->x, c, row) + i, n);
            vec sum = x * some(o->a + tail * o->in + i, n);
            if (o->b) sum += some(o->b + i, n);
            for (int64_t t = 0; t < tail; t++) {
                const vec old = some(at(o->past, row, 0, t) + i, n);
                sum += old * some(o->a + t * o->in + i, n);
                if (t) put(at(o->next, row, 0, t - 1) + i, old, n);
            }
            if (tail) put(at(o->next, row, 0, tail - 1) + i, x, n);
            put(of(o->y, c, row) + i, activated(sum, SILU), n);
        }
}

/* x holds values of all heads (`out` wide), then keys and queries of all groups (`in` wide), z the steps of the heads, with
   a their bias, b the log rates and c the skips: S' = exp(-step rate) S + key (x) step value; y = S'^T query + skip value. */
static void recur(const operation *o, const crew *c) {
    const int64_t each = o->heads / o->groups, K = o->in, V = o->out;
    int64_t from, to;
    share(c, c->rows * o->heads, &from, &to);
    for (int64_t unit = from; unit < to; unit++) {
        const int64_t row = unit / o->heads, h = unit % o->heads;
        const real *x = of(o->x, c, row), *v = x + h * V, *k = x + o->heads * V + h / each * K, *q = k + o->groups * K;
        const double raw = (double)of(o->z, c, row)[h] + o->a[h], soft = raw > 30 ? raw : log1p(exp(raw));
        const double step = soft < o->low ? o->low : soft > o->high ? o->high : soft;
        const real kept = exp(-step * exp(o->b[h])), written = step;
        const real *old = at(o->past, row, h, 0);
        real *new = at(o->next, row, h, 0), *y = of(o->y, c, row) + h * V;
        for (int64_t i = 0; i < V; i += 4 * LANES) {
            vec value[4] = {{0}}, read[4] = {{0}};
            const int parts = V - i >= 4 * LANES ? 4 : (int)((V - i + LANES - 1) / LANES);
            for (int l = 0; l < parts; l++) value[l] = written * some(v + i + l * LANES, V - i - l * LANES);
            if (V - i >= 4 * LANES)
                for (int64_t j = 0; j < K; j++)
                    for (int l = 0; l < 4; l++) {
                        const vec s = kept * load(old + j * o->past.time + i + l * LANES) + k[j] * value[l];
                        store(new + j * o->next.time + i + l * LANES, s);
                        read[l] += q[j] * s;
                    }
            else
                for (int64_t j = 0; j < K; j++)
                    for (int l = 0; l < parts; l++) {
                        const int64_t n = V - i - l * LANES;
                        const vec s = kept * some(old + j * o->past.time + i + l * LANES, n) + k[j] * value[l];
                        put(new + j * o->next.time + i + l * LANES, s, n);
                        read[l] += q[j] * s;
                    }
            for (int l = 0; l < parts; l++) {
                const int64_t n = V - i - l * LANES;
                put(y + i + l * LANES, read[l] + o->c[h] * some(v + i + l * LANES, n), n);
            }
        }
    }
}

/* ---- the program ---- */

typedef void function(const operation *, const crew *);
static function *const OPERATIONS[] = {linear, norm, angles, attend, convolve, recur};

INLINE void rest(int64_t turns) {
#if defined(__x86_64__)
    if (turns < 4096) {
        _mm_pause();
        return;
    }
#endif
    sched_yield(); /* the others may need this very core */
}

/* Until everybody has come here as often as this thread. */
INLINE void meet(int64_t *arrived, int64_t goal) {
    __atomic_fetch_add(arrived, 1, __ATOMIC_ACQ_REL);
    for (int64_t turns = 0; __atomic_load_n(arrived, __ATOMIC_ACQUIRE) < goal; turns++) rest(turns);
}

/* Runs the program; 2, and nothing is done, where the room of a state is full or taken by tokens of another continuation. */
int EXPORT(decode)(const arguments *a) {
    for (int64_t i = 0; i < a->count; i++) {
        const operation *o = a->operations[i];
        for (int64_t row = 0; o->used && row < a->rows; row++)
            if (o->used[row] != a->seen[row] || a->seen[row] >= o->room) return 2;
    }
    int64_t arrived[16] __attribute__((aligned(64))) = {0}; /* a cache line of its own */
#ifdef _OPENMP
#pragma omp parallel num_threads((int)a->threads)
#endif
    {
        crew c = {a->rows, worker(), 1, a->seen};
#ifdef _OPENMP
        c.team = omp_get_num_threads();
#endif
        int64_t goal = 0;
        for (int64_t i = 0; i < a->count; i++) {
            const operation *o = a->operations[i];
            OPERATIONS[o->kind](o, &c);
            if (o->wait && c.team > 1) meet(arrived, goal += c.team);
        }
    }
    return 0;
}
