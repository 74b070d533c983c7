/* Batch norm of images in training, alone or with a ReLU or a sum and a ReLU behind it, in two passes over memory.

       y = max(0, scale x + shift + other)        scale = weight / s      shift = bias - scale mean      s = sqrt(variance + eps)
       g = dy where y > 0                         dother = g              dbias = sum g                  dweight = sum g (x - mean) / s
       dx = scale (g - dbias / N - (x - mean) / s dweight / N)

   Sums are made over blocks of rows in the tensor's own precision, and added up in double.  Squares are those of distances
   from the mean of the blocks before, and no block is longer than all of these together, but the first, of FEW rows: neither a
   mean far from 0 nor an outlier at the beginning then costs digits.

   Pixels are cut into PARTS, each summed by one thread, so the number of threads changes no bit.  The second pass goes the
   other way round than the first, to meet what is still in cache.  The last vector of a row overlaps the one before it.

   Legend: N pixels of the whole batch, C channels, at least LANES of them; an image is [pixel][channel]. */
#include "_real.h"

typedef struct {
    const stored *x, *other, *dy;
    stored *y, *dx, *dother;
    const real *weight, *bias;
    real *kept;                            /* mean, 1 / s, scale, shift [C] */
    real *running_mean, *running_variance; /* changed in place */
    real *dweight, *dbias;
    int64_t pixels, channels, kind, threads;
    double eps, momentum;
} arguments;

enum { PARTS = 16, ROWS = 128, FEW = 8, PAIR = 2 * LANES };
enum { PLAIN, RELU, SUM_RELU };

typedef struct {
    const arguments *a;
    double *first, *second;               /* [PARTS][C]: means and squares; backward sums of g and of g (x - mean) */
    real *mean, *inverse, *scale, *shift; /* inverse: 1 / s */
    real *slope, *level;                  /* dx = scale g + slope (x - mean) + level */
    real *sums;                           /* [PARTS][3][C], of one block */
} work;

INLINE int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }
INLINE int64_t begin(const arguments *a, int64_t part) { return a->pixels * part / PARTS; }

/* For two vectors of channels, at j and k; for the vector at j; for channel c. */
#define PAIRS(j, k) for (int64_t s_ = 0, j, k; j = least(s_, C - LANES), k = least(s_ + LANES, C - LANES), s_ < C; s_ += PAIR)
#define VECTORS(j) for (int64_t s_ = 0, j; j = least(s_, C - LANES), s_ < C; s_ += LANES)
#define CHANNELS(c) for (int64_t c = 0; c < C; c++)

INLINE vec line(vec x, vec scale, vec shift) { return x * scale + shift; }
/* Not-a-numbers go through both. */
INLINE vec cut(vec y) { return choose(y < 0, (vec){0}, y); }
INLINE vec let_through(vec dy, vec y) { return choose(y <= 0, (vec){0}, dy); }

/* ---- forward ---- */

/* Sums of x - from and of its square over n rows. */
static void measure_block(const stored *x, int64_t n, int64_t C, const real *from, real *sum, real *square) {
    PAIRS(j, k) {
        const vec from_j = load(from + j), from_k = load(from + k);
        vec sum_j = {0}, sum_k = {0}, square_j = {0}, square_k = {0};
        const stored *row = x;
        for (int64_t i = 0; i < n; i++, row += C) {
            const vec a = load_stored(row + j) - from_j, b = load_stored(row + k) - from_k;
            sum_j += a, square_j += a * a;
            sum_k += b, square_k += b * b;
        }
        store(sum + j, sum_j), store(sum + k, sum_k);
        store(square + j, square_j), store(square + k, square_k);
    }
}

/* Mean and squares of `seen` pixels become those of n others too. */
INLINE void join(double *mean, double *squares, int64_t seen, double new_mean, double new_squares, int64_t n) {
    const double step = new_mean - *mean, share = (double)n / (double)(seen + n);
    *mean += step * share;
    *squares += new_squares + step * step * share * (double)seen;
}

static void measure(const work *w, int64_t part) {
    const int64_t C = w->a->channels, start = begin(w->a, part), end = begin(w->a, part + 1);
    double *const mean = w->first + part * C, *const squares = w->second + part * C;
    real *const from = w->sums + part * 3 * C, *const sum = from + C, *const square = sum + C;
    CHANNELS(c) mean[c] = squares[c] = 0;
    VECTORS(j) store(from + j, load_stored(w->a->x + start * C + j));
    for (int64_t row = start, n; row < end; row += n) {
        const int64_t seen = row - start;
        n = least(seen < FEW ? FEW : least(seen, ROWS), end - row);
        measure_block(w->a->x + row * C, n, C, from, sum, square);
        CHANNELS(c) {
            const double step = sum[c] * (1.0 / (double)n);
            join(mean + c, squares + c, seen, from[c] + step, square[c] - step * sum[c], n);
            from[c] = (real)mean[c];
        }
    }
}

static void conclude_measuring(const work *w) {
    const arguments *const a = w->a;
    const int64_t C = a->channels;
    const double N = (double)a->pixels;
    double *const mean = w->first, *const squares = w->second;
    for (int64_t part = 1; part < PARTS; part++) {
        const int64_t seen = begin(a, part), n = begin(a, part + 1) - seen;
        if (n) CHANNELS(c) join(mean + c, squares + c, seen, mean[part * C + c], squares[part * C + c], n);
    }
    CHANNELS(c) {
        const double inverse = 1 / sqrt(squares[c] / N + a->eps), scale = inverse * a->weight[c];
        w->mean[c] = (real)mean[c], w->inverse[c] = (real)inverse;
        w->scale[c] = (real)scale, w->shift[c] = (real)(a->bias[c] - scale * mean[c]);
        a->running_mean[c] += (real)(a->momentum * (mean[c] - a->running_mean[c]));
        a->running_variance[c] += (real)(a->momentum * (squares[c] / (N - 1) - a->running_variance[c]));
    }
}

INLINE void write(const work *w, int64_t row, int64_t n, int kind) {
    const arguments *const a = w->a;
    const int64_t C = a->channels;
    for (int64_t at = row * C; at < (row + n) * C; at += C) VECTORS(j) {
        vec y = line(load_stored(a->x + at + j), load(w->scale + j), load(w->shift + j));
        if (kind == SUM_RELU) y += load_stored(a->other + at + j);
        store_stored(a->y + at + j, kind == PLAIN ? y : cut(y));
    }
}

/* ---- backward ---- */

/* Sums of g and of g (x - mean) over n rows; with another summand y says where g is 0, else x can. */
INLINE void gather_block(const work *w, int64_t row, int64_t n, int kind, real *sum, real *moment) {
    const arguments *const a = w->a;
    const int64_t C = a->channels;
    PAIRS(j, k) {
        const vec mean_j = load(w->mean + j), mean_k = load(w->mean + k), scale_j = load(w->scale + j), scale_k = load(w->scale + k);
        const vec shift_j = load(w->shift + j), shift_k = load(w->shift + k);
        vec sum_j = {0}, sum_k = {0}, moment_j = {0}, moment_k = {0};
        for (int64_t at = row * C; at < (row + n) * C; at += C) {
            const vec x_j = load_stored(a->x + at + j), x_k = load_stored(a->x + at + k);
            vec g_j = load_stored(a->dy + at + j), g_k = load_stored(a->dy + at + k);
            if (kind == RELU) g_j = let_through(g_j, line(x_j, scale_j, shift_j)), g_k = let_through(g_k, line(x_k, scale_k, shift_k));
            if (kind == SUM_RELU) {
                g_j = let_through(g_j, load_stored(a->y + at + j)), g_k = let_through(g_k, load_stored(a->y + at + k));
                store_stored(a->dother + at + j, g_j), store_stored(a->dother + at + k, g_k);
            }
            sum_j += g_j, moment_j += g_j * (x_j - mean_j);
            sum_k += g_k, moment_k += g_k * (x_k - mean_k);
        }
        store(sum + j, sum_j), store(sum + k, sum_k);
        store(moment + j, moment_j), store(moment + k, moment_k);
    }
}

INLINE void gather(const work *w, int64_t part, int kind) {
    const int64_t C = w->a->channels, end = begin(w->a, part + 1);
    double *const sums = w->first + part * C, *const moments = w->second + part * C;
    real *const sum = w->sums + part * 3 * C, *const moment = sum + C;
    CHANNELS(c) sums[c] = moments[c] = 0;
    for (int64_t row = begin(w->a, part); row < end; row += ROWS) {
        gather_block(w, row, least(ROWS, end - row), kind, sum, moment);
        CHANNELS(c) sums[c] += sum[c], moments[c] += moment[c];
    }
}

static void conclude_gathering(const work *w) {
    const arguments *const a = w->a;
    const int64_t C = a->channels;
    const double N = (double)a->pixels;
    for (int64_t part = 1; part < PARTS; part++)
        CHANNELS(c) w->first[c] += w->first[part * C + c], w->second[c] += w->second[part * C + c];
    CHANNELS(c) {
        const double inverse = w->inverse[c], scale = w->scale[c], dweight = w->second[c] * inverse;
        a->dbias[c] = (real)w->first[c], a->dweight[c] = (real)dweight;
        w->slope[c] = (real)(-scale * inverse * dweight / N), w->level[c] = (real)(-scale * w->first[c] / N);
    }
}

INLINE void write_gradient(const work *w, int64_t row, int64_t n, int kind) {
    const arguments *const a = w->a;
    const int64_t C = a->channels;
    const stored *const dy = kind == SUM_RELU ? a->dother : a->dy;
    for (int64_t at = row * C; at < (row + n) * C; at += C) VECTORS(j) {
        const vec x = load_stored(a->x + at + j), scale = load(w->scale + j);
        vec g = load_stored(dy + at + j);
        if (kind == RELU) g = let_through(g, line(x, scale, load(w->shift + j)));
        store_stored(a->dx + at + j, g * scale + ((x - load(w->mean + j)) * load(w->slope + j) + load(w->level + j)));
    }
}

/* ---- what Python calls ---- */

/* Calls a step with the kind as a constant, so that each kind has its own loop. */
#define BY_KIND(step, ...)                                                            \
    switch (w->a->kind) {                                                              \
        case PLAIN: step(__VA_ARGS__, PLAIN); break;                                   \
        case RELU: step(__VA_ARGS__, RELU); break;                                     \
        default: step(__VA_ARGS__, SUM_RELU);                                          \
    }

static void first_pass(const work *w, int64_t part, int back) {
    if (!back)
        measure(w, part);
    else
        BY_KIND(gather, w, part)
}

static void second_pass(const work *w, int64_t part, int back) {
    for (int64_t end = begin(w->a, part + 1), n; end > begin(w->a, part); end -= n) {
        n = least(ROWS, end - begin(w->a, part));
        if (!back)
            BY_KIND(write, w, end - n, n)
        else
            BY_KIND(write_gradient, w, end - n, n)
    }
}

static int run(const arguments *a, int back) {
    const int64_t C = a->channels, threads = least(a->threads, PARTS);
    double *const doubles = malloc((size_t)(2 * PARTS * C) * sizeof(double));
    real *const space = reals((size_t)((2 + 3 * PARTS) * C)), *const kept = a->kept;
    const int failed = !doubles || !space;
    if (!failed) {
        const work made = {.a = a, .first = doubles, .second = doubles + PARTS * C, .mean = kept, .inverse = kept + C, .scale = kept + 2 * C,
                           .shift = kept + 3 * C, .slope = space, .level = space + C, .sums = space + 2 * C}, *const w = &made;
#pragma omp parallel num_threads(threads)
        {
#pragma omp for
            for (int64_t t = 0; t < threads; t++)
                for (int64_t part = PARTS * t / threads; part < PARTS * (t + 1) / threads; part++) first_pass(w, part, back);
#pragma omp single
            (back ? conclude_gathering : conclude_measuring)(w);
#pragma omp for
            for (int64_t t = 0; t < threads; t++)
                for (int64_t part = PARTS * (t + 1) / threads; part-- > PARTS * t / threads;) second_pass(w, part, back);
        }
    }
    free(doubles), free(space);
    return failed;
}

int EXPORT(normalize_forward)(const arguments *a) { return run(a, 0); }
int EXPORT(normalize_backward)(const arguments *a) { return run(a, 1); }
