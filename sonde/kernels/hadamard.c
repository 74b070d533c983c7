/* The recurrence with a decay of its own for every state entry (Mamba, S4), forward and backward.

       S_t[c,w] = exp(log_value_t[w] rate[c,w]) S_{t-1}[c,w] + k_t[c] v_t[w]
       out_t[w] = sum_c q_t[c] weight[c,w] S_t[c,w]

   Lanes run over value channels w.  A task owns a block of WIDTH channels of one (row, head) and walks through time in
   spans of `every` steps, with everything it touches in scratch, padded to WIDTH: the one place where odd widths are
   dealt with is the copy in and out.  The backward pass begins a span from the state saved before it, rebuilds the
   decays and states of the span, then runs over it in reverse. */
#include "_real.h"

#include <stdbool.h>

enum { VECTORS = 2, WIDTH = VECTORS * LANES, SUM = LANES < 4 ? 4 : LANES };

typedef struct {
    view q, k, v, log_value, rate, weight, state;     /* inputs; rate and weight are [head, key, value] */
    view out, last;
    real *saved; /* states before each span, or NULL */
    view d_out, d_last;                               /* gradients that come in */
    view dq, dk, dv, d_log_value, d_rate, d_weight, d_state; /* and go out */
    int64_t rows, heads, length, keys, values, every, threads;
} arguments;

/* ---------------------------------------------------------------- exp -------------------------------------------- */

/* The polynomial of least relative error for 2^y on [-1/2, 1/2] among those with value 1 at 0. */
#if REAL_BITS == 64
static const real POWER[] = {1.0,
                             0.69314718055994532581,
                             0.2402265069591013126,
                             0.055504108664820083227,
                             0.0096181291075941200896,
                             0.0013333558146774620517,
                             0.0001540353045711209086,
                             0.000015252733493127489347,
                             1.3215435282308487999e-6,
                             1.0178199571842137974e-7,
                             7.0737832485031332991e-9,
                             4.4347712982003767083e-10};
static const real HUGE_REAL = 0x1.fffffffffffffp1023, MAGIC = 0x1.8p52, NEAR = 1020;
enum { MANTISSA = 52, DEGREE = 11 };
#else
static const real POWER[] = {1.0,
                             0.69314697759899203815,
                             0.2402224208537670947,
                             0.055507337434700852738,
                             0.0096715126399564551514,
                             0.001326472714007201332};
static const real HUGE_REAL = 0x1.fffffep127f, MAGIC = 0x1.8p23f, NEAR = 124;
enum { MANTISSA = 23, DEGREE = 5 };
#endif

/* y to 2^y for a row of vectors side by side, so that their chains of operations overlap; |y| <= NEAR.  To an ulp or
   two, and 1 exactly at 0.  Adding MAGIC rounds y to a whole number and leaves it in the low bits, from where it is
   added to the exponent. */
INLINE void powers_near(vec *y) {
    vec whole_part[VECTORS], p[VECTORS];
    for (int j = 0; j < VECTORS; j++) whole_part[j] = y[j] + MAGIC;
    for (int j = 0; j < VECTORS; j++) y[j] -= whole_part[j] - MAGIC;
    for (int j = 0; j < VECTORS; j++) p[j] = y[j] * POWER[DEGREE] + POWER[DEGREE - 1];
    for (int i = DEGREE - 2; i >= 0; i--)
        for (int j = 0; j < VECTORS; j++) p[j] = p[j] * y[j] + POWER[i];
    for (int j = 0; j < VECTORS; j++) y[j] = (vec)((wvec)p[j] + ((wvec)whole_part[j] << MANTISSA));
}

/* y to 4^y for any y, as the square of 2^y: far enough out that is 0 or infinite.  Not-a-number stays one. */
INLINE void powers_of_four(vec *y) {
    for (int j = 0; j < VECTORS; j++) y[j] = vmin(broadcast(NEAR), vmax(broadcast(-NEAR), y[j]));
    powers_near(y);
    for (int j = 0; j < VECTORS; j++) y[j] *= y[j];
}

/* ---------------------------------------------------------------- copies ----------------------------------------- */

/* Rows of `width` numbers into rows of WIDTH, the rest of them 0; and back. */
INLINE void gather(real *to, const real *from, int64_t stride, int64_t rows, int width) {
    for (int64_t i = 0; i < rows; i++, to += WIDTH, from += stride) {
        if (width == WIDTH) {
            for (int j = 0; j < WIDTH; j += LANES) store(to + j, load(from + j));
        } else {
            memset(to, 0, sizeof(real[WIDTH]));
            memcpy(to, from, (size_t)width * sizeof(real));
        }
    }
}

INLINE void scatter(real *to, int64_t stride, const real *from, int64_t rows, int width) {
    for (int64_t i = 0; i < rows; i++, to += stride, from += WIDTH) {
        if (width == WIDTH)
            for (int j = 0; j < WIDTH; j += LANES) store(to + j, load(from + j));
        else
            memcpy(to, from, (size_t)width * sizeof(real));
    }
}

INLINE void zero(real *to, int64_t n) { memset(to, 0, (size_t)n * sizeof(real)); }

/* Numbers below the normal range count as 0 while a task runs: states fade through it, and many CPUs crawl there. */
INLINE unsigned flush_begin(void) {
#ifdef __SSE2__
    unsigned before = __builtin_ia32_stmxcsr();
    __builtin_ia32_ldmxcsr(before | 0x8040);
    return before;
#else
    return 0;
#endif
}

INLINE void flush_end(unsigned before) {
#ifdef __SSE2__
    __builtin_ia32_ldmxcsr(before);
#else
    (void)before;
#endif
}

/* ---------------------------------------------------------------- one block of channels --------------------------- */

/* What a task works on.  Its arrays are [span, WIDTH] for a time series, [keys, WIDTH] for a matrix, and
   [span, keys, WIDTH] for decays and states. */
typedef struct {
    const arguments *a;
    int64_t row, head, first; /* its channels are first .. first + width - 1 */
    int width;
    bool constant;                                      /* the decays are the same at every step */
    real steepest;                                      /* largest |rate| */
    real *ones, *rate, *weight, *v, *log_value, *decay; /* rate in units of log 2, so that the decay is a power of 2 */
    real *state, *out;                                  /* forward: one state */
    real *d_out, *dv, *d_log_value, *d_state, *d_rate, *d_weight, *rate_sum, *weight_sum; /* backward */
    real *sums; /* for each key, the lanes yet to be added up for dq; then the same for dk */
} block;

static int64_t round_up(int64_t n, int64_t unit) { return (n + unit - 1) / unit * unit; }

/* Lays the arrays of a block out in `space` and gives how much they need; a first call with NULL asks only that. */
static int64_t lay_out(block *x, real *space, const arguments *a, bool backward) {
    int64_t used = 0, matrix = a->keys * WIDTH, series = a->every * WIDTH;
#define TAKE(name, n) (x->name = space ? space + used : NULL, used += round_up(n, 64 / (int64_t)sizeof(real)))
    TAKE(ones, a->keys);
    TAKE(rate, matrix), TAKE(weight, matrix);
    TAKE(v, series), TAKE(log_value, series), TAKE(decay, series * a->keys);
    TAKE(state, backward ? (series + WIDTH) * a->keys : matrix);
    if (!backward) {
        TAKE(out, series);
    } else {
        TAKE(d_out, series), TAKE(dv, series), TAKE(d_log_value, series), TAKE(d_state, matrix);
        TAKE(d_rate, matrix), TAKE(d_weight, matrix), TAKE(rate_sum, matrix), TAKE(weight_sum, matrix);
        TAKE(sums, 2 * SUM * round_up(a->keys, 4));
    }
#undef TAKE
    if (space) {
        x->a = a;
        zero(space, used);
        for (int64_t c = 0; c < a->keys; c++) x->ones[c] = 1;
    }
    return used;
}

/* The static parts of a block. */
static void begin_block(block *x, int64_t row, int64_t head, int64_t first) {
    const arguments *a = x->a;
    x->row = row, x->head = head, x->first = first;
    x->width = a->values - first < WIDTH ? (int)(a->values - first) : WIDTH;
    x->constant = a->log_value.time == 0;
    gather(x->rate, at(a->rate, head, 0, 0) + first, a->rate.head, a->keys, x->width);
    if (a->weight.data) gather(x->weight, at(a->weight, head, 0, 0) + first, a->weight.head, a->keys, x->width);
    real *const rate = x->rate;
    const int64_t matrix = a->keys * WIDTH;
    vec high = {0}, low = {0};
    for (int64_t i = 0; i < matrix; i += LANES) {
        vec r = load(rate + i) * (real)1.44269504088896340736;
        store(rate + i, r);
        high = vmax(high, r), low = vmin(low, r);
    }
    vec most = vmax(high, -low);
    x->steepest = 0;
    for (int i = 0; i < LANES; i++) x->steepest = most[i] > x->steepest ? most[i] : x->steepest;
}

/* How a decay is had: it was made before, or from its exponent, near 0 or anywhere. */
typedef enum { MADE, NEAR_0, ANYWHERE } origin;

/* The gates of a span.  A gate of -inf is held as the lowest finite number, so that its product with a rate or a
   gradient of 0 is 0. */
static origin gates(block *x, int64_t begin, int64_t steps) {
    const arguments *a = x->a;
    gather(x->log_value, at(a->log_value, x->row, x->head, begin) + x->first, a->log_value.time, steps, x->width);
    vec most = {0};
    for (int64_t i = 0; i < steps * WIDTH; i += LANES) {
        vec g = vmax(broadcast(-HUGE_REAL), load(x->log_value + i));
        store(x->log_value + i, g);
        most = vmax(most, vmax(g, -g));
    }
    bool near = true;
    for (int i = 0; i < LANES; i++) near = near && most[i] * x->steepest <= NEAR;
    return near ? NEAR_0 : ANYWHERE;
}

/* d = 2^(g rate), for a row of vectors. */
INLINE void decays(vec *d, const vec *g, const real *rate, const origin from) {
    for (int j = 0; j < VECTORS; j++) d[j] = (from == ANYWHERE ? (real)0.5 * g[j] : g[j]) * load(rate + j * LANES);
    if (from == ANYWHERE)
        powers_of_four(d);
    else
        powers_near(d);
}

/* Gates that are the same at every step, and the decays they make. */
static void begin_constant(block *x) {
    const int64_t span = x->a->length < x->a->every ? x->a->length : x->a->every;
    const origin from = gates(x, 0, span);
    vec g[VECTORS], d[VECTORS];
    for (int j = 0; j < VECTORS; j++) g[j] = load(x->log_value + j * LANES);
    for (int64_t i = 0; i < x->a->keys * WIDTH; i += WIDTH) {
        if (from == NEAR_0)
            decays(d, g, x->rate + i, NEAR_0);
        else
            decays(d, g, x->rate + i, ANYWHERE);
        for (int j = 0; j < VECTORS; j++) store(x->decay + i + j * LANES, d[j]);
    }
}

/* Runs a span forward.  The state before step t is at `t * stride` of x->state and the one after it a stride later: 0
   keeps only the last.  With `read` the outputs of the span are made, else all its states and decays are kept. */
INLINE void advance_as(block *x, int64_t begin, int64_t steps, const bool read, const bool weighted, const origin from) {
    const arguments *a = x->a;
    const int64_t keys = a->keys, matrix = keys * WIDTH, decay_stride = x->constant ? 0 : matrix, stride = read ? 0 : matrix;
    for (int64_t t = 0; t < steps; t++) {
        const real *q = a->q.data ? at(a->q, x->row, x->head, begin + t) : x->ones;
        const real *k = a->k.data ? at(a->k, x->row, x->head, begin + t) : x->ones;
        const real *rate = x->rate, *weight = x->weight, *before = x->state + t * stride;
        real *decay = x->decay + t * decay_stride, *after = x->state + (t + 1) * stride;
        vec v[VECTORS], g[VECTORS], out[VECTORS];
        for (int j = 0; j < VECTORS; j++) {
            const int64_t place = t * WIDTH + j * LANES;
            v[j] = load(x->v + place), g[j] = load(x->log_value + place), out[j] = (vec){0};
        }
        for (int64_t c = 0, i = 0; c < keys; c++) {
            const real qc = q[c], kc = k[c];
            vec d[VECTORS];
            if (from != MADE) decays(d, g, rate + i, from);
            for (int j = 0; j < VECTORS; j++, i += LANES) {
                if (from == MADE)
                    d[j] = load(decay + i);
                else if (!read)
                    store(decay + i, d[j]);
                vec s = d[j] * load(before + i) + kc * v[j];
                store(after + i, s);
                if (read) out[j] += qc * (weighted ? load(weight + i) * s : s);
            }
        }
        if (read)
            for (int j = 0; j < VECTORS; j++) store(x->out + t * WIDTH + j * LANES, out[j]);
    }
}

INLINE void advance(block *x, int64_t begin, int64_t steps, const bool read, const bool weighted) {
    if (x->constant)
        advance_as(x, begin, steps, read, weighted, MADE);
    else if (gates(x, begin, steps) == NEAR_0)
        advance_as(x, begin, steps, read, weighted, NEAR_0);
    else
        advance_as(x, begin, steps, read, weighted, ANYWHERE);
}

/* Where the state before a span is kept: each block has its spans one after the other. */
INLINE real *saved_at(const block *x, int64_t begin) {
    const arguments *a = x->a;
    const int64_t spans = (a->length + a->every - 1) / a->every, place = x->row * a->heads + x->head;
    return a->saved + a->keys * (spans * (place * a->values + x->first) + begin / a->every * x->width);
}

/* Asks for the rows of the span from `begin` on, so that they are in cache when they are used: they lie far apart. */
INLINE void fetch(const block *x, view series, int64_t begin, int64_t steps) {
    for (int64_t t = begin; t < begin + steps; t++)
        for (int i = 0; i < WIDTH; i += 64 / (int)sizeof(real))
            __builtin_prefetch(at(series, x->row, x->head, t) + x->first + i);
}

static void forward(block *x) {
    const arguments *a = x->a;
    const int64_t matrix = a->keys * WIDTH;
    if (x->constant) begin_constant(x);
    if (a->state.data)
        gather(x->state, at(a->state, x->row, x->head, 0) + x->first, a->state.time, a->keys, x->width);
    else
        zero(x->state, matrix);
    for (int64_t begin = 0; begin < a->length; begin += a->every) {
        int64_t steps = a->length - begin < a->every ? a->length - begin : a->every;
        if (a->saved) {
            scatter(saved_at(x, begin), x->width, x->state, a->keys, x->width);
        }
        const int64_t next = begin + steps, more = a->length - next < a->every ? a->length - next : a->every;
        fetch(x, a->v, next, more), fetch(x, a->out, begin, steps);
        if (!x->constant) fetch(x, a->log_value, next, more);
        gather(x->v, at(a->v, x->row, x->head, begin) + x->first, a->v.time, steps, x->width);
        if (a->weight.data)
            advance(x, begin, steps, true, true);
        else
            advance(x, begin, steps, true, false);
        scatter(at(a->out, x->row, x->head, begin) + x->first, a->out.time, x->out, steps, x->width);
    }
    scatter(at(a->last, x->row, x->head, 0) + x->first, a->last.time, x->state, a->keys, x->width);
}

/* ---------------------------------------------------------------- backward ---------------------------------------- */

typedef real quad __attribute__((vector_size(4 * sizeof(real)), aligned(sizeof(real)), may_alias));
typedef whole quad_index __attribute__((vector_size(4 * sizeof(real))));
#ifdef __clang__
#define SHUFFLE(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define SHUFFLE(a, b, ...) __builtin_shuffle(a, b, (quad_index){__VA_ARGS__})
#endif

/* to[i] += the sum of lanes i * SUM .. (i + 1) * SUM - 1, four at a time: the last steps of a 4 x 4 transpose. */
INLINE void add_sums(real *to, const real *lanes, int64_t n) {
    for (int64_t i = 0; i < n; i += 4) {
        quad r[4];
        for (int j = 0; j < 4; j++) {
            const quad *from = (const quad *)(lanes + (i + j) * SUM);
            r[j] = from[0];
            for (int part = 1; part < SUM / 4; part++) r[j] += from[part];
        }
        quad low = SHUFFLE(r[0], r[1], 0, 4, 1, 5) + SHUFFLE(r[0], r[1], 2, 6, 3, 7);
        quad high = SHUFFLE(r[2], r[3], 0, 4, 1, 5) + SHUFFLE(r[2], r[3], 2, 6, 3, 7);
        quad sum = SHUFFLE(low, high, 0, 1, 4, 5) + SHUFFLE(low, high, 2, 3, 6, 7);
        if (i + 4 <= n)
            *(quad *)(to + i) += sum;
        else
            for (int j = 0; i + j < n; j++) to[i + j] += sum[j];
    }
}

/* Runs a span in reverse: x->d_state comes in as the gradient of the state after the span and leaves as that of the one
   before it.  dq and dk are this span's rows [steps, keys] and are added to. */
INLINE void retreat(block *x, int64_t begin, int64_t steps, real *dq, real *dk, const bool weighted, const bool keyed) {
    const arguments *a = x->a;
    const int64_t keys = a->keys, matrix = keys * WIDTH, decay_stride = x->constant ? 0 : matrix;
    const real *const rate = x->rate, *const weights = x->weight;
    real *const d_state = x->d_state, *const d_rate = x->d_rate, *const d_weight = x->d_weight;
    real *const q_sums = x->sums, *const k_sums = x->sums + SUM * round_up(keys, 4);
    for (int64_t t = steps - 1; t >= 0; t--) {
        const real *q = a->q.data ? at(a->q, x->row, x->head, begin + t) : x->ones;
        const real *k = a->k.data ? at(a->k, x->row, x->head, begin + t) : x->ones;
        const real *decay = x->decay + t * decay_stride, *before = x->state + t * matrix, *after = before + matrix;
        vec v[VECTORS], g[VECTORS], d_out[VECTORS], dv[VECTORS], dg[VECTORS];
        for (int j = 0; j < VECTORS; j++) {
            const int64_t place = t * WIDTH + j * LANES;
            v[j] = load(x->v + place), g[j] = load(x->log_value + place), d_out[j] = load(x->d_out + place);
            dv[j] = dg[j] = (vec){0};
        }
        for (int64_t c = 0, i = 0; c < keys; c++) {
            const real qc = q[c], kc = k[c];
            vec q_sum = {0}, k_sum = {0};
            for (int j = 0; j < VECTORS; j++, i += LANES) {
                vec s = load(after + i), read = qc * d_out[j], ds;
                if (weighted) {
                    vec weight = load(weights + i);
                    store(d_weight + i, load(d_weight + i) + read * s);
                    ds = load(d_state + i) + read * weight;
                    if (keyed) q_sum += d_out[j] * (weight * s);
                } else {
                    ds = load(d_state + i) + read;
                    if (keyed) q_sum += d_out[j] * s;
                }
                if (keyed) k_sum += ds * v[j];
                dv[j] += kc * ds;
                ds *= load(decay + i);
                store(d_state + i, ds);
                vec d_log = ds * load(before + i);
                dg[j] += d_log * load(rate + i);
                store(d_rate + i, load(d_rate + i) + d_log * g[j]);
            }
            if (keyed) store(q_sums + c * SUM, q_sum), store(k_sums + c * SUM, k_sum);
        }
        for (int j = 0; j < VECTORS; j++) {
            store(x->dv + t * WIDTH + j * LANES, dv[j]);
            store(x->d_log_value + t * WIDTH + j * LANES, dg[j] * (real)0.69314718055994530942);
        }
        if (keyed) add_sums(dq + t * keys, q_sums, keys), add_sums(dk + t * keys, k_sums, keys);
    }
}

/* Adds a matrix to its running sum and clears it: sums of sums lose less over a long sequence. */
static void fold(real *sum, real *part, int64_t n) {
    for (int64_t i = 0; i < n; i += LANES) store(sum + i, load(sum + i) + load(part + i)), store(part + i, (vec){0});
}

/* dq and dk are [length, keys] and are added to; d_rate and d_weight [keys, values] are set for these channels. */
static void backward(block *x, real *dq, real *dk, real *d_rate, real *d_weight) {
    const arguments *a = x->a;
    const int64_t matrix = a->keys * WIDTH;
    const bool weighted = a->weight.data, keyed = a->q.data || a->k.data;
    if (a->d_last.data)
        gather(x->d_state, at(a->d_last, x->row, x->head, 0) + x->first, a->d_last.time, a->keys, x->width);
    else
        zero(x->d_state, matrix);
    zero(x->rate_sum, matrix), zero(x->weight_sum, matrix);
    if (x->constant) begin_constant(x);
    for (int64_t span = (a->length - 1) / a->every; span >= 0 && a->length; span--) {
        const int64_t begin = span * a->every, steps = a->length - begin < a->every ? a->length - begin : a->every;
        gather(x->state, saved_at(x, begin), x->width, a->keys, x->width);
        if (span) {
            const int64_t next = begin - a->every;
            fetch(x, a->v, next, a->every), fetch(x, a->d_out, next, a->every);
            if (!x->constant) fetch(x, a->log_value, next, a->every);
        }
        fetch(x, a->dv, begin, steps), fetch(x, a->d_log_value, begin, steps);
        gather(x->v, at(a->v, x->row, x->head, begin) + x->first, a->v.time, steps, x->width);
        gather(x->d_out, at(a->d_out, x->row, x->head, begin) + x->first, a->d_out.time, steps, x->width);
        advance(x, begin, steps, false, false);
        real *dq_here = dq + begin * a->keys, *dk_here = dk + begin * a->keys;
        if (weighted && keyed)
            retreat(x, begin, steps, dq_here, dk_here, true, true);
        else if (weighted)
            retreat(x, begin, steps, dq_here, dk_here, true, false);
        else if (keyed)
            retreat(x, begin, steps, dq_here, dk_here, false, true);
        else
            retreat(x, begin, steps, dq_here, dk_here, false, false);
        fold(x->rate_sum, x->d_rate, matrix);
        if (weighted) fold(x->weight_sum, x->d_weight, matrix);
        scatter(at(a->dv, x->row, x->head, begin) + x->first, a->dv.time, x->dv, steps, x->width);
        scatter(at(a->d_log_value, x->row, x->head, begin) + x->first, a->d_log_value.time, x->d_log_value, steps, x->width);
    }
    scatter(d_rate + x->first, a->values, x->rate_sum, a->keys, x->width);
    scatter(d_weight + x->first, a->values, x->weight_sum, a->keys, x->width);
    scatter(at(a->d_state, x->row, x->head, 0) + x->first, a->d_state.time, x->d_state, a->keys, x->width);
}

/* ---------------------------------------------------------------- calls ------------------------------------------- */

int EXPORT(hadamard_forward)(const arguments *a) {
    block layout;
    const int64_t blocks = (a->values + WIDTH - 1) / WIDTH, tasks = a->rows * a->heads * blocks;
    const int64_t share = lay_out(&layout, NULL, a, false);
    const int threads = (int)(a->threads < tasks ? a->threads : tasks);
    if (!tasks) return 0;
    real *space = reals((size_t)(share * threads));
    if (!space) return 1;
#pragma omp parallel num_threads(threads) if (threads > 1)
    {
        const unsigned before = flush_begin();
        block x;
        lay_out(&x, space + share * worker(), a, false);
#pragma omp for schedule(dynamic)
        for (int64_t task = 0; task < tasks; task++) {
            const int64_t place = task / blocks;
            begin_block(&x, place / a->heads, place % a->heads, task % blocks * WIDTH);
            forward(&x);
        }
        flush_end(before);
    }
    free(space);
    return 0;
}

INLINE vec load_upto(const real *p, int n) { return n >= LANES ? load(p) : n > 0 ? load_some(p, n) : (vec){0}; }
INLINE void store_upto(real *p, vec x, int n) {
    if (n >= LANES)
        store(p, x);
    else if (n > 0)
        store_some(p, x, n);
}

/* One step of `width` channels, where they lie. */
INLINE void step_block(const arguments *a, int64_t row, int64_t head, int64_t first, const int width) {
    const real *q = a->q.data ? at(a->q, row, head, 0) : NULL, *k = a->k.data ? at(a->k, row, head, 0) : NULL;
    const real *rate = at(a->rate, head, 0, 0) + first, *weight = a->weight.data ? at(a->weight, head, 0, 0) + first : NULL;
    real *state = at(a->state, row, head, 0) + first;
    vec half[VECTORS], v[VECTORS], out[VECTORS], d[VECTORS];
    for (int j = 0, n = width; j < VECTORS; j++, n -= LANES) {
        vec g = load_upto(at(a->log_value, row, head, 0) + first + j * LANES, n);
        half[j] = vmax(broadcast(-HUGE_REAL), g) * (real)0.72134752044448170368;
        v[j] = load_upto(at(a->v, row, head, 0) + first + j * LANES, n), out[j] = (vec){0};
    }
    for (int64_t c = 0; c < a->keys; c++, rate += a->rate.head, state += a->state.time) {
        const real qc = q ? q[c] : 1, kc = k ? k[c] : 1;
        for (int j = 0, n = width; j < VECTORS; j++, n -= LANES) d[j] = half[j] * load_upto(rate + j * LANES, n);
        powers_of_four(d);
        for (int j = 0, n = width; j < VECTORS; j++, n -= LANES) {
            vec s = d[j] * load_upto(state + j * LANES, n) + kc * v[j];
            store_upto(state + j * LANES, s, n);
            out[j] += qc * (weight ? load_upto(weight + c * a->weight.head + j * LANES, n) * s : s);
        }
    }
    for (int j = 0, n = width; j < VECTORS; j++, n -= LANES) store_upto(at(a->out, row, head, 0) + first + j * LANES, out[j], n);
}

static void step_place(const arguments *a, int64_t place) {
    const unsigned before = flush_begin();
    const int64_t row = place / a->heads, head = place % a->heads;
    int64_t first = 0;
    for (; first + WIDTH <= a->values; first += WIDTH) step_block(a, row, head, first, WIDTH);
    if (first < a->values) step_block(a, row, head, first, (int)(a->values - first));
    flush_end(before);
}

/* One step in place on `state`.  A lone thread does not enter a parallel region, which costs as much as a small step. */
int EXPORT(hadamard_step)(const arguments *a) {
    const int64_t places = a->rows * a->heads;
    if (a->threads < 2) {
        for (int64_t place = 0; place < places; place++) step_place(a, place);
        return 0;
    }
#pragma omp parallel for num_threads((int)a->threads)
    for (int64_t place = 0; place < places; place++) step_place(a, place);
    return 0;
}

/* dq and dk are sums over channels and d_rate and d_weight sums over rows.  Each task keeps its own part of them and the
   parts are added in a fixed order, so that the result does not depend on the threads.  The number of parts follows
   from the sizes: enough tasks to share out, and no more than PARTS_BYTES. */
enum { TASKS = 16, PARTS_BYTES = 24 << 20 };

int EXPORT(hadamard_backward)(const arguments *a) {
    block layout;
    const int64_t blocks = (a->values + WIDTH - 1) / WIDTH, places = a->rows * a->heads;
    if (!places || !blocks) return 0;
    const int64_t series = a->length * a->keys, matrix = a->keys * a->values;
    int64_t groups = (TASKS + places - 1) / places;
    groups = groups < blocks ? groups : blocks;
    while (groups > 1 && 2 * places * groups * series * (int64_t)sizeof(real) > PARTS_BYTES) groups--;
    const int64_t tasks = places * groups, share = lay_out(&layout, NULL, a, true);
    const int threads = (int)(a->threads < tasks ? a->threads : tasks);
    real *space = reals((size_t)(share * threads));
    real *dq = reals((size_t)(tasks * series)), *dk = reals((size_t)(tasks * series));
    real *d_rate = reals((size_t)(places * matrix)), *d_weight = reals((size_t)(places * matrix));
    const int failed = !(space && dq && dk && d_rate && d_weight);
    if (!failed) {
#pragma omp parallel num_threads(threads) if (threads > 1)
        {
            const unsigned before = flush_begin();
            block x;
            lay_out(&x, space + share * worker(), a, true);
#pragma omp for schedule(dynamic)
            for (int64_t task = 0; task < tasks; task++) {
                const int64_t place = task / groups, group = task % groups;
                zero(dq + task * series, series), zero(dk + task * series, series);
                for (int64_t b = blocks * group / groups; b < blocks * (group + 1) / groups; b++) {
                    begin_block(&x, place / a->heads, place % a->heads, b * WIDTH);
                    backward(&x, dq + task * series, dk + task * series, d_rate + place * matrix, d_weight + place * matrix);
                }
            }
#pragma omp for
            for (int64_t i = 0; i < places * a->length; i++) {
                const int64_t place = i / a->length, t = i % a->length;
                for (int which = 0; which < 2; which++) {
                    const view to = which ? a->dk : a->dq;
                    if (!to.data) continue;
                    real *sum = at(to, place / a->heads, place % a->heads, t);
                    const real *part = (which ? dk : dq) + place * groups * series + t * a->keys;
                    memcpy(sum, part, (size_t)a->keys * sizeof(real));
                    for (int64_t g = 1; g < groups; g++)
                        for (int64_t c = 0; c < a->keys; c++) sum[c] += part[g * series + c];
                }
            }
#pragma omp for
            for (int64_t i = 0; i < a->heads * a->keys; i++) {
                const int64_t head = i / a->keys, c = i % a->keys;
                for (int which = 0; which < 2; which++) {
                    const view to = which ? a->d_weight : a->d_rate;
                    if (!to.data) continue;
                    real *sum = at(to, head, c, 0);
                    const real *part = (which ? d_weight : d_rate) + i * a->values;
                    memcpy(sum, part, (size_t)a->values * sizeof(real));
                    for (int64_t row = 1; row < a->rows; row++)
                        for (int64_t w = 0; w < a->values; w++) sum[w] += part[row * a->heads * matrix + w];
                }
            }
            flush_end(before);
        }
    }
    free(space), free(dq), free(dk), free(d_rate), free(d_weight);
    return failed;
}
