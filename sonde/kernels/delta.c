/* The delta rule with a scalar decay, forward, backward and one decode step.

       S' = exp(gate) S;   r = v - S'^T k;   u = beta r;   S = S' + k (x) u;   out = S^T q

   Time runs in chunks of CHUNK steps.  With S the state before the chunk, a_t = exp(gate_t), reach[i][j] the product
   of a over j < t <= i, start[i] the product over t <= i and end[j] = reach[last][j]:

       r_i = v_i - start_i S^T k_i - sum_{j<i} reach_ij (k_i . k_j) u_j        (forward substitution)
       out_i = start_i S^T q_i + sum_{j<=i} reach_ij (q_i . k_j) u_j
       S <- start_last S + sum_j end_j k_j (x) u_j

   so that all work on the K x V state is small matrix products that stay in cache.  Decays are products, never
   differences of sums, so a gate of -inf is exact, and a gate's gradient is a sum of the terms that cross it.

   Legend: K, V widths of keys and values; Kp, Vp the same rounded up to whole strips (the padding holds zeros).
   Matrices of a chunk are row-major [CHUNK][Kp or Vp].  A state lies in strips of STRIP columns, each [rows][STRIP]:
   forward keeps S itself (rows are key channels), backward keeps its transpose and the transpose of its gradient. */
#include "_tile.h"

enum { CHUNK = STRIP > 16 ? STRIP : 16 };

typedef struct {
    view q, k, v, beta, gate, state;          /* inputs; gate and state may be absent */
    view out, final, residual, states;        /* forward's results; states: one every `interval` steps */
    view dout, dfinal;                        /* gradients that flow in; either may be absent */
    view dq, dk, dv, dbeta, dgate, dstate;    /* backward's results; dq, dk, dbeta and dgate once per value block */
    int64_t dq_block, dk_block, dgate_block;  /* strides between value blocks */
    int64_t rows, heads, groups, length, key_width, value_width;
    int64_t interval, blocks, threads;
} arguments;

/* One head, or a block of its value channels first .. last. */
typedef struct {
    int64_t row, head, block, first, last;
} task;

INLINE int64_t whole_chunks(int64_t n) { return (n + CHUNK - 1) / CHUNK; }

/* ---- register tiles: M rows of one strip ---- */

/* Runs the body for row blocks i, i + M, ... of n rows (a multiple of 4) with M = 6 or 4, upwards or downwards. */
#define ROWS(n, i, ...)                                   \
    for (int64_t i = 0, i##_left; (i##_left = (n) - i);)  \
        if (i##_left == 4 || i##_left == 8) {             \
            enum { M = 4 };                               \
            __VA_ARGS__;                                  \
            i += M;                                       \
        } else {                                          \
            enum { M = 6 };                               \
            __VA_ARGS__;                                  \
            i += M;                                       \
        }
#define ROWS_DOWN(n, i, ...)                              \
    for (int64_t i##_left = (n), i; i##_left;)            \
        if (i##_left == 4 || i##_left == 8) {             \
            enum { M = 4 };                               \
            i = i##_left -= M;                            \
            __VA_ARGS__;                                  \
        } else {                                          \
            enum { M = 6 };                               \
            i = i##_left -= M;                            \
            __VA_ARGS__;                                  \
        }
INLINE void tile_scale(int m, tile x, const real *by) { EACH(i, m) x[i][0] *= by[i], x[i][1] *= by[i]; }

/* sums[i] += lanewise x[i] * y(i) */
INLINE void tile_dots(int m, tile x, const real *y, int64_t step, vec *sums) {
    EACH(i, m) sums[i] += x[i][0] * load(y + i * step) + x[i][1] * load(y + i * step + LANES);
}

/* ---- moving blocks ---- */

/* Copies rows x width (rows of `from` are from_step apart) into [CHUNK][step], zeros around it. */
static void gather(real *to, int64_t step, const real *from, int64_t from_step, int64_t rows, int64_t width) {
    for (int64_t i = 0; i < CHUNK; i++) {
        int64_t filled = i < rows ? width : 0;
        if (filled) memcpy(to + i * step, from + i * from_step, (size_t)filled * sizeof(real));
        memset(to + i * step + filled, 0, (size_t)(step - filled) * sizeof(real));
    }
}

static void scatter(real *to, int64_t to_step, const real *from, int64_t step, int64_t rows, int64_t width) {
    for (int64_t i = 0; i < rows; i++) memcpy(to + i * to_step, from + i * step, (size_t)width * sizeof(real));
}

/* Asks early for one strip of the chunk at time t: its rows lie far apart in memory, which no hardware foresees. */
INLINE void expect(const arguments *a, view x, int64_t row, int64_t head, int64_t t, int64_t column) {
    if (t < 0 || t + CHUNK > a->length || !x.data) return;
    const real *p = at(x, row, head, t) + column;
    for (int i = 0; i < CHUNK; i++) __builtin_prefetch(p + i * x.time, 0, 2);
}

/* The state [K, columns], its rows `step` apart, into strips; `across` strips hold its transpose. */
static void state_in(real *strips, const real *state, int64_t step, int64_t K, int64_t columns, int across) {
    int64_t Kp = whole_strips(K), Vp = whole_strips(columns);
    if (!state || Kp != K || Vp != columns) memset(strips, 0, (size_t)(Kp * Vp) * sizeof(real));
    for (int64_t c = 0; c < K && state; c += STRIP)
        for (int64_t w = 0; w < columns; w += STRIP) {
            int64_t rows = least(STRIP, K - c), width = least(STRIP, columns - w);
            const real *from = state + c * step + w;
            real *to = strips + (across ? c * Vp + w * STRIP : w * Kp + c * STRIP);
            if (!across)
                scatter(to, STRIP, from, step, rows, width);
            else if (rows == STRIP && width == STRIP)
                transpose(to, STRIP, from, step, STRIP, STRIP);
            else
                for (int64_t i = 0; i < rows * width; i++) to[i % width * STRIP + i / width] = from[i / width * step + i % width];
        }
}

static void state_out(real *state, int64_t step, const real *strips, int64_t K, int64_t columns, int across) {
    int64_t Kp = whole_strips(K), Vp = whole_strips(columns);
    for (int64_t c = 0; c < K; c += STRIP)
        for (int64_t w = 0; w < columns; w += STRIP) {
            int64_t rows = least(STRIP, K - c), width = least(STRIP, columns - w);
            const real *from = strips + (across ? c * Vp + w * STRIP : w * Kp + c * STRIP);
            real *to = state + c * step + w;
            if (!across)
                scatter(to, step, from, STRIP, rows, width);
            else if (rows == STRIP && width == STRIP)
                transpose(to, step, from, STRIP, STRIP, STRIP);
            else
                for (int64_t i = 0; i < rows * width; i++) to[i / width * step + i % width] = from[i % width * STRIP + i / width];
        }
}

/* ---- what a chunk needs of its keys, queries and gates ---- */

typedef struct {
    int64_t K, Kp, group, rows;                      /* rows: steps of the chunk inside the sequence */
    real *k, *q, *kT;                                /* [CHUNK][Kp], [CHUNK][Kp], [Kp][CHUNK] */
    real start[CHUNK], beta[CHUNK];                  /* decay from the chunk's start; beta */
    real reach[CHUNK][CHUNK];                        /* decay from after j to i; 0 above the diagonal */
    real erase[CHUNK][CHUNK], read[CHUNK][CHUNK];    /* -reach k.k and reach q.k */
} chunk;

static const real identity[CHUNK][CHUNK] = {
#define ONE(i) [i][i] = 1
    ONE(0), ONE(1), ONE(2), ONE(3), ONE(4), ONE(5), ONE(6), ONE(7), ONE(8), ONE(9), ONE(10), ONE(11), ONE(12), ONE(13), ONE(14), ONE(15),
#if VECTOR_BYTES * 8 / REAL_BITS == 16
    ONE(16), ONE(17), ONE(18), ONE(19), ONE(20), ONE(21), ONE(22), ONE(23), ONE(24), ONE(25), ONE(26), ONE(27), ONE(28), ONE(29), ONE(30), ONE(31),
#endif
};

#define END(x) ((x)->reach[CHUNK - 1])
#define CARRY(x) ((x)->start[CHUNK - 1])

/* Keys, beta and decays of the chunk at time t: all that rebuilding a state needs. */
STAGE chunk_keys(chunk *x, const arguments *a, int64_t row, int64_t head, int64_t t) {
    x->group = head / (a->heads / a->groups);
    x->rows = least(CHUNK, a->length - t);
    gather(x->k, x->Kp, at(a->k, row, x->group, t), a->k.time, x->rows, x->K);
    real decay[CHUNK] = {0};
    for (int64_t i = 0; i < CHUNK; i++) x->beta[i] = i < x->rows ? *at(a->beta, row, head, t + i) : 0;
    if (a->gate.data)
        for (int64_t i = 0; i < x->rows; i++) decay[i] = *at(a->gate, row, head, t + i);
    for (int i = 0; i < CHUNK; i += LANES) store(decay + i, vexp(load(decay + i)));
    vec line[CHUNK / LANES] = {0};
    real reached = 1;
    for (int i = 0; i < CHUNK; i++) {
        x->start[i] = reached *= decay[i];
        for (int j = 0; j < CHUNK / LANES; j++) {
            line[j] = line[j] * decay[i] + load(identity[i] + j * LANES);
            store(x->reach[i] + j * LANES, line[j]);
        }
    }
}

/* Queries and the score matrices, after chunk_keys. */
STAGE chunk_scores(chunk *x, const arguments *a, int64_t row, int64_t head, int64_t t) {
    int64_t Kp = x->Kp;
    gather(x->q, Kp, at(a->q, row, x->group, t), a->q.time, x->rows, x->K);
    transpose(x->kT, CHUNK, x->k, Kp, CHUNK, Kp);
    for (int s = 0; s < CHUNK; s += STRIP) ROWS(CHUNK, i, {
        tile scores;
        tile_zero(M, scores);
        tile_product(M, scores, x->k + i * Kp, Kp, 1, x->kT + s, CHUNK, Kp);
        EACH(r, M) EACH(half, 2) {
            vec reach = load(x->reach[i + r] + s + half * LANES);
            store(x->erase[i + r] + s + half * LANES, -scores[r][half] * reach);
        }
        tile_zero(M, scores);
        tile_product(M, scores, x->q + i * Kp, Kp, 1, x->kT + s, CHUNK, Kp);
        EACH(r, M) EACH(half, 2) {
            vec reach = load(x->reach[i + r] + s + half * LANES);
            store(x->read[i + r] + s + half * LANES, scores[r][half] * reach);
        }
    })
}

/* ---- forward ---- */

/* Rows i .. i + m of residuals and writes of one strip; earlier rows of `u` are ready.  r may be NULL. */
INLINE void residual_rows(int m, int64_t i, const chunk *x, const real *S, const real *v, int64_t v_step, real *r, int64_t r_step,
                          real *u, real *ended) {
    tile y;
    tile_zero(m, y);
    tile_product(m, y, x->k + i * x->Kp, x->Kp, 1, S, STRIP, x->Kp);
    EACH(n, m) EACH(half, 2) y[n][half] = load(v + (i + n) * v_step + half * LANES) - x->start[i + n] * y[n][half];
    tile_product(m, y, x->erase[i], CHUNK, 1, u, STRIP, i);
    EACH(n, m) {
        EACH(l, m) if (l < n) {
            vec f = broadcast(x->erase[i + n][i + l]);
            y[n][0] += f * y[l][0];
            y[n][1] += f * y[l][1];
        }
        if (r) store(r + (i + n) * r_step, y[n][0]), store(r + (i + n) * r_step + LANES, y[n][1]);
        y[n][0] *= x->beta[i + n];
        y[n][1] *= x->beta[i + n];
    }
    tile_store(m, y, u + i * STRIP, STRIP);
    tile_scale(m, y, END(x) + i);
    tile_store(m, y, ended + i * STRIP, STRIP);
}

INLINE void out_rows(int m, int64_t i, const chunk *x, const real *S, const real *u, real *out, int64_t step) {
    tile y;
    tile_zero(m, y);
    tile_product(m, y, x->q + i * x->Kp, x->Kp, 1, S, STRIP, x->Kp);
    tile_scale(m, y, x->start + i);
    tile_product(m, y, x->read[i], CHUNK, 1, u, STRIP, i + m);
    tile_store(m, y, out + i * step, step);
}

/* Rows c .. c + m of a strip of the next state: carry * from + sum_s a(c, s) b(s). */
INLINE void state_rows(int m, real carry, const real *from, const real *a, int64_t as, const real *b, int64_t bs, real *to) {
    tile y;
    tile_load(m, y, from, STRIP);
    EACH(n, m) y[n][0] *= carry, y[n][1] *= carry;
    tile_product(m, y, a, 1, as, b, bs, CHUNK);
    tile_store(m, y, to, STRIP);
}

/* One strip of one chunk. */
STAGE forward_strip(const chunk *x, real *S, const real *v, int64_t v_step, real *r, int64_t r_step, real *out, int64_t out_step) {
    real u[CHUNK * STRIP] __attribute__((aligned(64))), ended[CHUNK * STRIP] __attribute__((aligned(64)));
    ROWS(CHUNK, i, residual_rows(M, i, x, S, v, v_step, r, r_step, u, ended))
    ROWS(CHUNK, i, out_rows(M, i, x, S, u, out, out_step))
    ROWS(x->Kp, c, state_rows(M, CARRY(x), S + c * STRIP, x->k + c, x->Kp, ended, STRIP, S + c * STRIP))
}

static void forward_task(const arguments *a, const task *job, chunk *x, real *S) {
    int64_t row = job->row, head = job->head, first = job->first, last = job->last;
    int64_t K = x->K, Kp = x->Kp;
    state_in(S, a->state.data ? at(a->state, row, head, 0) + first : NULL, a->state.time, K, last - first, 0);
    for (int64_t t = 0; t < a->length; t += CHUNK) {
        if (a->states.data && t % a->interval == 0)
            state_out(at(a->states, row, head, t / a->interval) + first, a->value_width, S, K, last - first, 0);
        chunk_keys(x, a, row, head, t);
        chunk_scores(x, a, row, head, t);
        for (int64_t w = first; w < last; w += STRIP) {
            expect(a, a->v, row, head, t + CHUNK, w);
            expect(a, a->k, row, x->group, t + CHUNK, w);
            expect(a, a->q, row, x->group, t + CHUNK, w);
            expect(a, a->out, row, head, t + CHUNK, w);
            expect(a, a->residual, row, head, t + CHUNK, w);
            real *strip = S + (w - first) * Kp, *out = at(a->out, row, head, t) + w;
            const real *v = at(a->v, row, head, t) + w;
            real *r = a->residual.data ? at(a->residual, row, head, t) + w : NULL;
            int64_t width = least(STRIP, last - w);
            if (width == STRIP && x->rows == CHUNK) {
                forward_strip(x, strip, v, a->v.time, r, a->residual.time, out, a->out.time);
                continue;
            }
            real edge[3][CHUNK * STRIP];
            gather(edge[0], STRIP, v, a->v.time, x->rows, width);
            forward_strip(x, strip, edge[0], STRIP, edge[1], STRIP, edge[2], STRIP);
            if (r) scatter(r, a->residual.time, edge[1], STRIP, x->rows, width);
            scatter(out, a->out.time, edge[2], STRIP, x->rows, width);
        }
    }
    state_out(at(a->final, row, head, 0) + first, a->final.time, S, K, last - first, 0);
}

/* ---- backward ---- */

typedef struct {
    int64_t Vp;
    real *dout, *started;          /* [CHUNK][Vp]: the output's gradient; times start */
    real *r, *u, *ended;           /* residuals; writes; writes times end */
    real *dr, *dprior;             /* gradients of r and of S^T k: dprior = -start dr */
    real *du, *duT, *uT;           /* what the next state wants of the writes, [CHUNK][Vp] and [Vp][CHUNK]; u transposed */
    real dread[CHUNK][CHUNK];      /* gradients of q.k and k.k */
    real derase[CHUNK][CHUNK];
    real cross[CHUNK][CHUNK];      /* what each pair (i, j) gives to every gate between */
    vec of_beta[CHUNK], from_start[CHUNK], to_end[CHUNK], through; /* lanewise sums */
} adjoint;

STAGE writes(adjoint *y, const chunk *x, const arguments *a, const task *job, int64_t t) {
    const real *from = at(a->residual, job->row, job->head, t) + job->first;
    gather(y->r, y->Vp, from, a->residual.time, x->rows, job->last - job->first);
    for (int64_t i = 0; i < CHUNK; i++)
        for (int64_t w = i * y->Vp; w < (i + 1) * y->Vp; w += LANES) {
            vec u = load(y->r + w) * x->beta[i];
            store(y->u + w, u);
            store(y->ended + w, u * END(x)[i]);
        }
}

/* Rows i .. i + m of the strip at column w of dr; later rows are ready. */
INLINE void solve_rows(int m, int64_t i, const chunk *x, adjoint *y, int64_t w) {
    int64_t Vp = y->Vp, here = i * Vp + w;
    tile z;
    tile_load(m, z, y->du + here, Vp);
    tile_scale(m, z, END(x) + i);
    tile_dots(m, z, y->u + here, Vp, y->to_end + i);
    tile_product(m, z, x->read[i] + i, 1, CHUNK, y->dout + here, Vp, CHUNK - i);
    tile_product(m, z, x->erase[0] + (i + m) * CHUNK + i, 1, CHUNK, y->dr + here + m * Vp, Vp, CHUNK - i - m);
    _Pragma("GCC unroll 6") for (int n = m - 1; n >= 0; n--) {
        const real *r = y->r + here + n * Vp;
        y->of_beta[i + n] += z[n][0] * load(r) + z[n][1] * load(r + LANES);
        z[n][0] *= x->beta[i + n];
        z[n][1] *= x->beta[i + n];
        EACH(l, m) if (l < n) {
            vec f = broadcast(x->erase[i + n][i + l]);
            z[l][0] += f * z[n][0];
            z[l][1] += f * z[n][1];
        }
    }
    tile_store(m, z, y->dr + here, Vp);
    EACH(n, m) EACH(half, 2) store(y->dprior + here + n * Vp + half * LANES, z[n][half] * -x->start[i + n]);
}

/* Gradients of the scores, and what they give to the gates. */
STAGE score_gradients(const chunk *x, adjoint *y) {
    int64_t Vp = y->Vp;
    transpose(y->uT, CHUNK, y->u, Vp, CHUNK, Vp);
    for (int s = 0; s < CHUNK; s += STRIP) ROWS(CHUNK, i, {
        tile d;
        tile_zero(M, d);
        tile_product(M, d, y->dout + i * Vp, Vp, 1, y->uT + s, CHUNK, Vp);
        EACH(n, M) EACH(half, 2) {
            int64_t j = s + half * LANES;
            store(y->cross[i + n] + j, d[n][half] * load(x->read[i + n] + j));
            store(y->dread[i + n] + j, d[n][half] * load(x->reach[i + n] + j));
        }
        tile_zero(M, d);
        tile_product(M, d, y->dr + i * Vp, Vp, 1, y->uT + s, CHUNK, Vp);
        EACH(n, M) EACH(half, 2) {
            int64_t j = s + half * LANES;
            vec before = load(x->reach[i + n] + j) - load(identity[i + n] + j);
            store(y->cross[i + n] + j, load(y->cross[i + n] + j) + d[n][half] * load(x->erase[i + n] + j));
            store(y->derase[i + n] + j, -d[n][half] * before);
        }
    })
}

INLINE void dq_rows(int m, int64_t i, const chunk *x, adjoint *y, const real *T, int64_t c, real *dq, int64_t step) {
    tile d;
    tile_zero(m, d);
    tile_product(m, d, y->started + i * y->Vp, y->Vp, 1, T, STRIP, y->Vp);
    tile_dots(m, d, x->q + i * x->Kp + c, x->Kp, y->from_start + i);
    tile_product(m, d, y->dread[i], CHUNK, 1, x->k + c, x->Kp, i + m);
    tile_store(m, d, dq + i * step, step);
}

INLINE void dk_rows(int m, int64_t i, const chunk *x, adjoint *y, const real *T, const real *dT, int64_t c, real *dk, int64_t step) {
    int64_t Kp = x->Kp, Vp = y->Vp;
    tile d;
    tile_zero(m, d);
    tile_product(m, d, y->dprior + i * Vp, Vp, 1, T, STRIP, Vp);
    tile_dots(m, d, x->k + i * Kp + c, Kp, y->from_start + i);
    tile_product(m, d, y->ended + i * Vp, Vp, 1, dT, STRIP, Vp);
    tile_product(m, d, y->derase[i], CHUNK, 1, x->k + c, Kp, i + m);
    tile_product(m, d, y->derase[i] + i, 1, CHUNK, x->k + i * Kp + c, Kp, CHUNK - i);
    tile_product(m, d, y->dread[i] + i, 1, CHUNK, x->q + i * Kp + c, Kp, CHUNK - i);
    tile_store(m, d, dk + i * step, step);
}

/* Rows w .. w + m of a strip of the state's gradient before the chunk, in place. */
INLINE void dstate_rows(int m, int64_t w, const chunk *x, adjoint *y, const real *T, real *dT, int64_t c) {
    tile d;
    tile_load(m, d, dT, STRIP);
    EACH(n, m) EACH(half, 2) {
        y->through += d[n][half] * load(T + n * STRIP + half * LANES);
        d[n][half] *= CARRY(x);
    }
    tile_product(m, d, y->started + w, 1, y->Vp, x->q + c, x->Kp, CHUNK);
    tile_product(m, d, y->dprior + w, 1, y->Vp, x->k + c, x->Kp, CHUNK);
    tile_store(m, d, dT, STRIP);
}

/* Every gate's gradient: the sum of all terms whose decay passes through it; nothing cancels. */
STAGE gate_gradients(const chunk *x, const adjoint *y, real *dgate) {
    real d[CHUNK] = {0}, before = total(y->through) * CARRY(x);
    for (int t = 0; t < CHUNK; t++) d[t] = before, before += total(y->to_end[t]);
    for (int i = 0; i < CHUNK; i++) {
        real crossing = total(y->from_start[i]);
        for (int t = 0; t <= i; t++) d[t] += crossing, crossing += y->cross[i][t];
    }
    memcpy(dgate, d, (size_t)x->rows * sizeof(real));
}

/* What the state's gradient after the chunk wants of the writes. */
STAGE wanted_writes(const chunk *x, adjoint *y, const real *dT) {
    int64_t Vp = y->Vp;
    for (int s = 0; s < CHUNK; s += STRIP) ROWS(Vp, w, {
        tile d;
        tile_zero(M, d);
        for (int64_t c = 0; c < x->Kp; c += STRIP)
            tile_product(M, d, dT + c * Vp + w * STRIP, STRIP, 1, x->kT + c * CHUNK + s, CHUNK, STRIP);
        tile_store(M, d, y->duT + w * CHUNK + s, CHUNK);
    })
    transpose(y->du, Vp, y->duT, CHUNK, Vp, CHUNK);
}

STAGE solve(const chunk *x, adjoint *y) {
    for (int64_t w = 0; w < y->Vp; w += STRIP) ROWS_DOWN(CHUNK, i, solve_rows(M, i, x, y, w))
}

/* The strip at key channel c: dq and dk of the chunk, and the state's gradient before it in place of the one after. */
STAGE backward_strip(const chunk *x, adjoint *y, int64_t c, const real *T, real *dT, real *dq, int64_t dq_step, real *dk, int64_t dk_step) {
    ROWS(CHUNK, i, dq_rows(M, i, x, y, T, c, dq, dq_step))
    ROWS(CHUNK, i, dk_rows(M, i, x, y, T, dT, c, dk, dk_step))
    ROWS(y->Vp, w, dstate_rows(M, w, x, y, T + w * STRIP, dT + w * STRIP, c))
}

/* One chunk backwards: T is the transposed state before it, dT the transposed gradient, after it and then before it. */
static void backward_chunk(const arguments *a, const task *job, int64_t t, chunk *x, adjoint *y, const real *T, real *dT) {
    int64_t Kp = x->Kp, Vp = y->Vp, row = job->row, head = job->head, width = job->last - job->first;
    chunk_keys(x, a, row, head, t);
    chunk_scores(x, a, row, head, t);
    writes(y, x, a, job, t);
    gather(y->dout, Vp, a->dout.data ? at(a->dout, row, head, t) + job->first : NULL, a->dout.time, a->dout.data ? x->rows : 0, width);
    for (int64_t i = 0; i < CHUNK; i++)
        for (int64_t w = i * Vp; w < (i + 1) * Vp; w += LANES) store(y->started + w, load(y->dout + w) * x->start[i]);
    memset(y->of_beta, 0, sizeof y->of_beta);
    memset(y->from_start, 0, sizeof y->from_start);
    memset(y->to_end, 0, sizeof y->to_end);
    y->through = (vec){0};

    wanted_writes(x, y, dT);
    for (int64_t w = 0; w < Vp; w += STRIP) {
        expect(a, a->dout, row, head, t - CHUNK, job->first + w);
        expect(a, a->residual, row, head, t - a->interval, job->first + w); /* when the segment before is rebuilt */
    }
    solve(x, y);
    scatter(at(a->dv, row, head, t) + job->first, a->dv.time, y->dr, Vp, x->rows, width);
    for (int64_t i = 0; i < x->rows; i++) at(a->dbeta, row, head, t)[job->block * a->dgate_block + i] = total(y->of_beta[i]);
    score_gradients(x, y);
    for (int64_t c = 0; c < Kp; c += STRIP) {
        real *dq = at(a->dq, row, head, t) + job->block * a->dq_block + c, *dk = at(a->dk, row, head, t) + job->block * a->dk_block + c;
        int64_t columns = least(STRIP, x->K - c);
        expect(a, a->q, row, x->group, t - CHUNK, c);
        expect(a, a->k, row, x->group, t - a->interval, c);
        if (columns == STRIP && x->rows == CHUNK) {
            backward_strip(x, y, c, T + c * Vp, dT + c * Vp, dq, a->dq.time, dk, a->dk.time);
        } else {
            real edge[2][CHUNK * STRIP];
            backward_strip(x, y, c, T + c * Vp, dT + c * Vp, edge[0], STRIP, edge[1], STRIP);
            scatter(dq, a->dq.time, edge[0], STRIP, x->rows, columns);
            scatter(dk, a->dk.time, edge[1], STRIP, x->rows, columns);
        }
    }
    if (a->dgate.data) gate_gradients(x, y, at(a->dgate, row, head, t) + job->block * a->dgate_block);
}

/* The state after the chunk from the one before it, both transposed. */
STAGE rebuild(const chunk *x, const adjoint *y, const real *from, real *to) {
    for (int64_t c = 0; c < x->Kp; c += STRIP)
        ROWS(y->Vp, w, {
            int64_t here = c * y->Vp + w * STRIP;
            state_rows(M, CARRY(x), from + here, y->ended + w, y->Vp, x->k + c, x->Kp, to + here);
        })
}

/* One task, from the last segment between saved states to the first. */
static void backward_task(const arguments *a, const task *job, chunk *x, adjoint *y, real *states, real *dT) {
    int64_t row = job->row, head = job->head, first = job->first, width = job->last - first;
    int64_t size = x->Kp * (y->Vp = whole_strips(width));
    state_in(dT, a->dfinal.data ? at(a->dfinal, row, head, 0) + first : NULL, a->dfinal.time, x->K, width, 1);
    for (int64_t segment = (a->length + a->interval - 1) / a->interval; segment--;) {
        int64_t begin = segment * a->interval, chunks = whole_chunks(least(a->interval, a->length - begin));
        state_in(states, at(a->states, row, head, segment) + first, a->value_width, x->K, width, 1);
        for (int64_t n = 0; n + 1 < chunks; n++) {
            chunk_keys(x, a, row, head, begin + n * CHUNK);
            writes(y, x, a, job, begin + n * CHUNK);
            rebuild(x, y, states + n * size, states + (n + 1) * size);
        }
        for (int64_t n = chunks; n--;) backward_chunk(a, job, begin + n * CHUNK, x, y, states + n * size, dT);
    }
    state_out(at(a->dstate, row, head, 0) + first, a->dstate.time, dT, x->K, width, 1);
}

/* ---- the parallel region: tasks are heads, cut into blocks of value channels ---- */

static task task_of(const arguments *a, int64_t index) {
    int64_t block = index % a->blocks, place = index / a->blocks;
    int64_t strips = whole_strips(a->value_width) / STRIP;
    task x = {place / a->heads, place % a->heads, block, strips * block / a->blocks * STRIP, strips * (block + 1) / a->blocks * STRIP};
    x.last = least(x.last, a->value_width);
    return x;
}

/* Cuts the next n reals, a whole number of cache lines, from the scratch. */
INLINE real *take(real **scratch, int64_t n) {
    real *space = *scratch;
    *scratch += (n + 15) / 16 * 16;
    return space;
}

INLINE int run(const arguments *a, int backward) {
    int64_t tasks = a->rows * a->heads * a->blocks, K = a->key_width, Kp = whole_strips(K);
    int64_t strips = whole_strips(a->value_width) / STRIP, Vp = (strips + a->blocks - 1) / a->blocks * STRIP, size = Kp * Vp;
    int64_t need = 3 * CHUNK * Kp + size;
    if (backward) need += 10 * CHUNK * Vp + whole_chunks(least(a->interval, a->length)) * size;
    int failed = 0, threads = (int)least(a->threads, tasks);
    if (tasks == 0) return 0;
#pragma omp parallel num_threads(threads) if (threads > 1)
    {
        real *scratch = reals((size_t)need), *rest = scratch;
        if (!scratch) {
#pragma omp atomic write
            failed = 1;
        }
#pragma omp barrier
        if (!failed) {
            chunk x = {.K = K, .Kp = Kp};
            adjoint y = {.Vp = Vp};
            x.k = take(&rest, CHUNK * Kp), x.q = take(&rest, CHUNK * Kp), x.kT = take(&rest, CHUNK * Kp);
            real *S = take(&rest, size);
            if (backward) {
                real **parts[] = {&y.dout, &y.started, &y.r, &y.u, &y.ended, &y.dr, &y.dprior, &y.du, &y.duT, &y.uT};
                for (int i = 0; i < 10; i++) *parts[i] = take(&rest, CHUNK * Vp);
            }
#pragma omp for schedule(dynamic, 1)
            for (int64_t i = 0; i < tasks; i++) {
                task job = task_of(a, i);
                if (backward)
                    backward_task(a, &job, &x, &y, rest, S);
                else
                    forward_task(a, &job, &x, S);
            }
        }
        free(scratch);
    }
    return failed;
}

int EXPORT(delta_forward)(const arguments *a) { return run(a, 0); }
int EXPORT(delta_backward)(const arguments *a) { return run(a, 1); }

/* One step of one head, on value channels w .. w + n LANES: a pass over the state reads it for key and query, a second
   updates it. */
INLINE void step_columns(int n, const real *q, const real *k, const real *v, real *out, real *S, int64_t step, int64_t K, real decay,
                          real beta, real score) {
    vec by_k[4] = {0}, by_q[4] = {0};
    for (int64_t c = 0; c < K; c++)
        EACH(i, n) {
            vec x = load(S + c * step + i * LANES);
            by_k[i] += k[c] * x;
            by_q[i] += q[c] * x;
        }
    EACH(i, n) {
        by_k[i] = beta * (load(v + i * LANES) - decay * by_k[i]);
        store(out + i * LANES, decay * by_q[i] + score * by_k[i]);
    }
    for (int64_t c = 0; c < K; c++) {
        vec key = broadcast(k[c]);
        EACH(i, n) {
            real *x = S + c * step + i * LANES;
            store(x, decay * load(x) + key * by_k[i]);
        }
    }
}

static void step_head(const arguments *a, int64_t row, int64_t head) {
    int64_t K = a->key_width, V = a->value_width, step = a->state.time, group = head / (a->heads / a->groups), c = 0, w = 0;
    const real *q = at(a->q, row, group, 0), *k = at(a->k, row, group, 0), *v = at(a->v, row, head, 0);
    real *out = at(a->out, row, head, 0), *S = at(a->state, row, head, 0);
    real decay = a->gate.data ? rexp(*at(a->gate, row, head, 0)) : 1, beta = *at(a->beta, row, head, 0);
    vec scores = {0};
    for (; c + LANES <= K; c += LANES) scores += load(q + c) * load(k + c);
    real score = total(scores + load_some(q + c, (int)(K - c)) * load_some(k + c, (int)(K - c)));
    for (; w + 4 * LANES <= V; w += 4 * LANES) step_columns(4, q, k, v + w, out + w, S + w, step, K, decay, beta, score);
    for (; w < V; w++) {
        real by_k = 0, by_q = 0;
        for (c = 0; c < K; c++) by_k += k[c] * S[c * step + w], by_q += q[c] * S[c * step + w];
        by_k = beta * (v[w] - decay * by_k);
        out[w] = decay * by_q + score * by_k;
        for (c = 0; c < K; c++) S[c * step + w] = decay * S[c * step + w] + k[c] * by_k;
    }
}

/* One step in place on `state`.  A lone thread does not enter a parallel region: that alone costs a tenth of a step. */
int EXPORT(delta_step)(const arguments *a) {
    int64_t tasks = a->rows * a->heads;
    if (a->threads < 2) {
        for (int64_t i = 0; i < tasks; i++) step_head(a, i / a->heads, i % a->heads);
        return 0;
    }
#pragma omp parallel for num_threads((int)a->threads)
    for (int64_t i = 0; i < tasks; i++) step_head(a, i / a->heads, i % a->heads);
    return 0;
}
