/* Softmax attention, forward and backward, exact: out_i = sum_j p_ij v_j with p_ij = exp(scale q_i . k_j - log_sum_i).

       dv_j = sum_i p_ij dout_i          dp_ij = dout_i . v_j          ds_ij = p_ij (dp_ij - sum_j p_ij dp_ij)
       dq_i = scale sum_j ds_ij k_j      dk_j = scale sum_i ds_ij q_i

   One task is one set of keys with all the heads that share it.  Its keys and values are copied into cache, rows as they
   are and, where vector lanes run over keys, transposed in strips.  ROWS queries at a time meet all the keys they see:
   with a causal order nothing is computed beyond the strip of the last of them.  Only log_sum is kept for the backward
   pass, which makes the weights again.

   Legend: N keys, K, V widths of keys and values; Np, Kp, Vp the same rounded up to whole strips (the padding holds zeros). */
#include "_tile.h"

typedef struct {
    view q, k, v, out, dout, dq, dk, dv;
    real *log_sum; /* [rows, heads, queries] */
    int64_t rows, groups, share, queries, keys, key, value, causal, threads; /* share: heads that use the same keys */
    double scale;
} arguments;

enum { ROWS = 6, BLOCK_ENTRIES = 16384 }; /* weights of one block of queries, half a megabyte at most with their gradients */

typedef struct {
    int64_t N, K, V, Np, Kp, Vp, block; /* block: queries whose weights are held together */
    real *k, *v, *k_strips, *v_strips;  /* [Np][Kp], [Np][Vp], and transposed [strip][Kp][STRIP], [strip][Vp][STRIP] */
    real *q, *dout;                     /* [block][Kp], [block][Vp] */
    real *p, *ds;                       /* [block][Np] */
    real *made;                         /* [ROWS][Kp or Vp] */
    real *dk, *dv;                      /* [Np + ROWS][Kp], [Np + ROWS][Vp] */
} bench;

/* Cuts one allocation into the parts; with base NULL it only counts. */
static size_t lay_out(bench *b, const arguments *a, int back, real *base) {
    b->N = a->keys, b->K = a->key, b->V = a->value;
    b->Np = whole_strips(b->N), b->Kp = whole_strips(b->K), b->Vp = whole_strips(b->V);
    b->block = ROWS;
    while (back && b->block < a->queries && b->block * b->Np < BLOCK_ENTRIES) b->block += ROWS;
    real *p = base;
#define PART(name, n) b->name = p, p += n
    PART(k, b->Np * b->Kp), PART(v, b->Np * b->Vp), PART(k_strips, b->Np * b->Kp), PART(q, b->block * b->Kp);
    PART(p, b->block * b->Np), PART(made, ROWS * (b->Kp > b->Vp ? b->Kp : b->Vp));
    if (back) {
        PART(v_strips, b->Np * b->Vp), PART(dout, b->block * b->Vp), PART(ds, b->block * b->Np);
        PART(dk, (b->Np + ROWS) * b->Kp), PART(dv, (b->Np + ROWS) * b->Vp);
    }
#undef PART
    return (size_t)(p - base) + STRIP; /* the last rows of a tile of weights may read a little beyond */
}

/* ---- between the caller's tensors and the bench ---- */

/* Rows x width, times a factor, into [padded rows][step] with zeros around. */
static void take(real *to, int64_t step, int64_t padded, const stored *from, int64_t from_step, int64_t rows, int64_t width, real factor) {
    for (int64_t i = 0; i < rows; i++, to += step, from += from_step) {
        int64_t c = 0;
        for (; c + LANES <= width; c += LANES) store(to + c, load_stored(from + c) * factor);
        if (c < width) store(to + c, load_stored_some(from + c, (int)(width - c)) * factor), c += LANES;
        for (; c < step; c += LANES) store(to + c, (vec){0});
    }
    if (padded > rows) memset(to, 0, (size_t)((padded - rows) * step) * sizeof(real));
}

static void give(stored *to, int64_t to_step, const real *from, int64_t step, int64_t rows, int64_t width, const real *factor, int64_t next) {
    for (int64_t i = 0; i < rows; i++, to += to_step, from += step, factor += next) {
        int64_t c = 0;
        for (; c + LANES <= width; c += LANES) store_stored(to + c, load(from + c) * *factor);
        if (c < width) store_stored_some(to + c, load(from + c) * *factor, (int)(width - c));
    }
}

STAGE take_keys(bench *b, const arguments *a, int64_t row, int64_t group, int back) {
    take(b->k, b->Kp, b->Np, at(a->k, row, group, 0), a->k.time, b->N, b->K, 1);
    take(b->v, b->Vp, b->Np, at(a->v, row, group, 0), a->v.time, b->N, b->V, 1);
    for (int64_t j = 0; j < b->Np; j += STRIP) {
        transpose(b->k_strips + j * b->Kp, STRIP, b->k + j * b->Kp, b->Kp, STRIP, b->Kp);
        if (back) transpose(b->v_strips + j * b->Vp, STRIP, b->v + j * b->Vp, b->Vp, STRIP, b->Vp);
    }
}

/* ---- products of ROWS rows ---- */

/* to[ROWS][N] = rows[ROWS][width] . keys, up to key `end`. */
STAGE scores(real *to, int64_t to_step, const real *rows, int64_t step, const real *strips, int64_t width, int64_t end) {
    for (int64_t j = 0; j < end; j += STRIP) {
        tile x;
        tile_zero(ROWS, x);
        tile_product(ROWS, x, rows, step, 1, strips + j * step, STRIP, width);
        tile_store(ROWS, x, to + j, to_step);
    }
}

/* to[ROWS][step] = weights[ROWS][end] rows[end][step] */
STAGE gather(real *to, const real *weights, int64_t weight_step, const real *rows, int64_t step, int64_t end) {
    for (int64_t c = 0; c < step; c += STRIP) {
        tile x;
        tile_zero(ROWS, x);
        tile_product(ROWS, x, weights, weight_step, 1, rows + c, step, end);
        tile_store(ROWS, x, to + c, step);
    }
}

/* to[ROWS][step] += weights[n][ROWS]^T rows[n][step] */
STAGE spread(real *to, const real *weights, int64_t weight_step, const real *rows, int64_t step, int64_t n) {
    for (int64_t c = 0; c < step; c += STRIP) {
        tile x;
        tile_load(ROWS, x, to + c, step);
        tile_product(ROWS, x, weights, 1, weight_step, rows + c, step, n);
        tile_store(ROWS, x, to + c, step);
    }
}

/* ---- weights ---- */

/* exp where x is at most 0, up to rounding. */
INLINE vec vexp_down(vec x) {
    const wvec low = x < EXP_LOW;
    return choose(low, (vec){0}, vexp_near(choose(low, broadcast(EXP_LOW), x)));
}

/* Lanes of the keys j .. that query i sees. */
INLINE wvec seen(const arguments *a, int64_t i, int64_t j) {
    wvec key;
    for (int lane = 0; lane < LANES; lane++) key[lane] = (whole)(j + lane);
    return key < (wvec){0} + (whole)(a->causal ? least(i + 1, a->keys) : a->keys);
}

/* How many keys the queries i .. i + ROWS see, and how many of these, in whole vectors, all of them see. */
INLINE int64_t seen_by_any(const arguments *a, int64_t i) { return a->causal ? least(i + ROWS, a->keys) : a->keys; }
INLINE int64_t seen_by_all(const arguments *a, int64_t i) { return (a->causal ? least(i + 1, a->keys) : a->keys) / LANES * LANES; }

/* Scores of the queries i .. become weights without their denominator; gives one over it and the log of the sum. */
STAGE weigh(const arguments *a, real *p, int64_t step, int64_t i, real *inverse, real *log_sum) {
    const int64_t common = seen_by_all(a, i), end = whole_strips(seen_by_any(a, i));
    vec top[ROWS], sum[ROWS];
    real highest[ROWS];
    EACH(r, ROWS) top[r] = broadcast(-INFINITY);
    for (int64_t j = 0; j < common; j += LANES) EACH(r, ROWS) top[r] = vmax(load(p + r * step + j), top[r]);
    for (int64_t j = common; j < end; j += LANES) EACH(r, ROWS) {
        const vec x = choose(seen(a, i + r, j), load(p + r * step + j), broadcast(-INFINITY));
        store(p + r * step + j, x);
        top[r] = vmax(x, top[r]);
    }
    EACH(r, ROWS) {
        highest[r] = top[r][0];
        for (int lane = 1; lane < LANES; lane++) highest[r] = top[r][lane] > highest[r] ? top[r][lane] : highest[r];
        sum[r] = (vec){0};
    }
    for (int64_t j = 0; j < end; j += LANES) EACH(r, ROWS) {
        const vec x = vexp_down(load(p + r * step + j) - highest[r]);
        store(p + r * step + j, x);
        sum[r] += x;
    }
    EACH(r, ROWS) {
        const real all = total(sum[r]);
        inverse[r] = 1 / all;
        log_sum[r] = highest[r] + (real)log(all);
    }
}

/* From scores and the gradients of the weights, ds coming in as dp, the weights and the gradients of the scores. */
STAGE weigh_again(const arguments *a, real *p, real *ds, int64_t step, int64_t i, const real *log_sum) {
    const int64_t common = seen_by_all(a, i), end = whole_strips(seen_by_any(a, i));
    vec mean[ROWS];
    EACH(r, ROWS) mean[r] = (vec){0};
    for (int64_t j = 0; j < end; j += LANES) EACH(r, ROWS) {
        vec x = vexp_down(load(p + r * step + j) - log_sum[r]);
        if (j >= common) x = choose(seen(a, i + r, j), x, (vec){0});
        store(p + r * step + j, x);
        mean[r] += x * load(ds + r * step + j);
    }
    EACH(r, ROWS) mean[r] = broadcast(total(mean[r]));
    for (int64_t j = 0; j < end; j += LANES) EACH(r, ROWS)
        store(ds + r * step + j, load(p + r * step + j) * (load(ds + r * step + j) - mean[r]));
}

/* ---- one task ---- */

static void forward(bench *b, const arguments *a, int64_t row, int64_t group) {
    take_keys(b, a, row, group, 0);
    for (int64_t head = group * a->share; head < (group + 1) * a->share; head++)
        for (int64_t i = 0; i < a->queries; i += ROWS) {
            const int64_t rows = least(ROWS, a->queries - i), end = seen_by_any(a, i);
            real inverse[ROWS], log_sum[ROWS];
            take(b->q, b->Kp, ROWS, at(a->q, row, head, i), a->q.time, rows, b->K, (real)a->scale);
            scores(b->p, b->Np, b->q, b->Kp, b->k_strips, b->K, end);
            weigh(a, b->p, b->Np, i, inverse, log_sum);
            gather(b->made, b->p, b->Np, b->v, b->Vp, end);
            give(at(a->out, row, head, i), a->out.time, b->made, b->Vp, rows, b->V, inverse, 1);
            memcpy(a->log_sum + (row * a->groups * a->share + head) * a->queries + i, log_sum, (size_t)rows * sizeof(real));
        }
}

/* The queries first .. of one head: dq, and their share of dk and dv. */
static void backward_block(bench *b, const arguments *a, int64_t row, int64_t head, int64_t first) {
    const int64_t count = least(b->block, a->queries - first), padded = (count + ROWS - 1) / ROWS * ROWS;
    const real scale = (real)a->scale;
    take(b->q, b->Kp, padded, at(a->q, row, head, first), a->q.time, count, b->K, scale);
    take(b->dout, b->Vp, padded, at(a->dout, row, head, first), a->dout.time, count, b->V, 1);
    for (int64_t i = 0; i < count; i += ROWS) {
        const int64_t rows = least(ROWS, count - i), end = seen_by_any(a, first + i);
        real *p = b->p + i * b->Np, *ds = b->ds + i * b->Np, log_sum[ROWS] = {0};
        memcpy(log_sum, a->log_sum + (row * a->groups * a->share + head) * a->queries + first + i, (size_t)rows * sizeof(real));
        scores(p, b->Np, b->q + i * b->Kp, b->Kp, b->k_strips, b->K, end);
        scores(ds, b->Np, b->dout + i * b->Vp, b->Vp, b->v_strips, b->V, end);
        weigh_again(a, p, ds, b->Np, first + i, log_sum);
        gather(b->made, ds, b->Np, b->k, b->Kp, end);
        give(at(a->dq, row, head, first + i), a->dq.time, b->made, b->Kp, rows, b->K, &scale, 0);
    }
    const int64_t end = a->causal ? least(first + count, b->N) : b->N;
    for (int64_t j = 0; j < end; j += ROWS) { /* `first` and j are whole tiles: no tile of weights is used that was not made */
        const int64_t from = a->causal && j > first ? j - first : 0;
        spread(b->dv + j * b->Vp, b->p + from * b->Np + j, b->Np, b->dout + from * b->Vp, b->Vp, padded - from);
        spread(b->dk + j * b->Kp, b->ds + from * b->Np + j, b->Np, b->q + from * b->Kp, b->Kp, padded - from);
    }
}

static void backward(bench *b, const arguments *a, int64_t row, int64_t group) {
    const real one = 1;
    take_keys(b, a, row, group, 1);
    memset(b->dk, 0, (size_t)(b->Np * b->Kp) * sizeof(real));
    memset(b->dv, 0, (size_t)(b->Np * b->Vp) * sizeof(real));
    for (int64_t head = group * a->share; head < (group + 1) * a->share; head++)
        for (int64_t first = 0; first < a->queries; first += b->block) backward_block(b, a, row, head, first);
    give(at(a->dk, row, group, 0), a->dk.time, b->dk, b->Kp, b->N, b->K, &one, 0);
    give(at(a->dv, row, group, 0), a->dv.time, b->dv, b->Vp, b->N, b->V, &one, 0);
}

/* ---- what Python calls ---- */

static int run(const arguments *a, int back) {
    const int64_t tasks = a->rows * a->groups;
    const int threads = (int)least(a->threads, tasks);
    bench plan = {0};
    const size_t each = lay_out(&plan, a, back, NULL);
    real *space = reals(each * (size_t)threads);
    if (!space) return 1;
#pragma omp parallel num_threads(threads)
    {
        bench own = {0};
        lay_out(&own, a, back, space + each * (size_t)worker());
#pragma omp for schedule(dynamic)
        for (int64_t task = 0; task < tasks; task++) (back ? backward : forward)(&own, a, task / a->groups, task % a->groups);
    }
    free(space);
    return 0;
}

int EXPORT(attend_forward)(const arguments *a) { return run(a, 0); }
int EXPORT(attend_backward)(const arguments *a) { return run(a, 1); }
