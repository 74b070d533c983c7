/* Recurrent cells through time, forward and backward: vanilla RNN, GRU and LSTM in all their conventions.

   What the inputs contribute, p = x W_x + b, was computed for all steps at once before; here follows what must go step by
   step: a small matrix product of the state with the recurrent weights, and the gates.

       RNN          h' = tanh(p + W h)   or relu
       GRU before   r, z = s(p + W h);   n = tanh(p + W_n (r h));        h' = z h + (1 - z) n
       GRU after    r, z = s(p + W h);   n = tanh(p + r (W_n h + v));    h' = z h + (1 - z) n
       LSTM         i, f, g, o = s, s, tanh, s(p + W h);   c' = f c + i g;   h' = o tanh(c')
         peephole   o = s(p + W h + v c')        cell only   o = s(v + W h + U c')

   Rows of the batch do not depend on each other: each thread takes some of them through all of time, so no step waits for
   another thread, and the number of threads changes no bit.

   Legend: H width of the state, Hp the same rounded up to whole strips (the padding is finite and meets zero weights),
   G gates.  A matrix is packed in strips of STRIP columns, each [depth][STRIP]. */
#include "_curves.h"

enum { STRIP = 2 * LANES, TALL = 6, SKEW = 16 }; /* SKEW keeps rows from falling into the same cache sets */
enum { RNN_TANH, RNN_RELU, GRU_BEFORE, GRU_AFTER, LSTM, LSTM_PEEPHOLE, LSTM_CELL };

typedef struct {
    const real *p, *weight, *inner, *vector, *h, *c; /* p [B][T][given H], weight [G H][H], inner U [H][H], vector v [H] */
    real *out, *last_h, *last_c;                     /* [B][T][H], [B][H], [B][H] */
    real *gates, *cells;                             /* what backward needs, or NULL: [B][T][G H], c' [B][T][H] */
    const real *dout, *dlast_h, *dlast_c;            /* gradients that flow in; any may be absent */
    real *dp, *dheld, *dh, *dc;                      /* dheld [B][T][H]: of W_n h + v (GRU after), of o before s (cell only) */
    const int64_t *lengths;                          /* steps of each row that count, or NULL for all */
    int64_t kind, rows, length, width, threads;
} arguments;

/* One thread's rows `first` .. `first + n` and its scratch.  The rows of all its blocks are `step` apart, one gate Hp wide. */
typedef struct {
    const arguments *a;
    int64_t kind, H, Hp, G, given, first, n, step;
    const real *outer, *inner; /* packed */
    real *state, *cell, *gate, *side;
} crew;

INLINE int64_t whole_strips(int64_t n) { return (n + STRIP - 1) / STRIP * STRIP; }
/* To the last digits of 1, not of its own size near 0: what it is added to is of order 1. */
INLINE vec vtanh(vec x) { return 1 - 2 / (1 + vexp(2 * x)); }

/* Lanes j .. of a row of n numbers; zeros beyond its end, where nothing is stored. */
INLINE vec take(const real *row, int64_t j, int64_t n) {
    return !row || j >= n ? (vec){0} : j + LANES <= n ? load(row + j) : load_some(row + j, (int)(n - j));
}
INLINE void put(real *row, int64_t j, int64_t n, vec x) {
    if (!row || j >= n) return;
    if (j + LANES <= n)
        store(row + j, x);
    else
        store_some(row + j, x, (int)(n - j));
}

/* ---- products ---- */

/* Strips of B[k][j] = from[k * down + j * across], `depth` rows and `columns` columns; zeros to whole strips and to `deep` rows. */
static void pack(real *strips, const real *from, int64_t down, int64_t across, int64_t depth, int64_t columns, int64_t deep) {
    for (int64_t s = 0; s < columns; s += STRIP, strips += deep * STRIP)
        for (int64_t k = 0; k < deep; k++)
            for (int64_t j = 0; j < STRIP; j++)
                strips[k * STRIP + j] = k < depth && s + j < columns ? from[k * down + (s + j) * across] : 0;
}

#define EACH(i, n) _Pragma("GCC unroll 6") for (int i = 0; i < (n); i++)

/* to[i] += sum_k a[i][k] strip[k] for m rows, all in registers. */
INLINE void tile(int m, real *to, const real *a, int64_t step, const real *strip, int64_t depth) {
    vec x[TALL][2];
    EACH(i, m) x[i][0] = load(to + i * step), x[i][1] = load(to + i * step + LANES);
    for (int64_t k = 0; k < depth; k++) {
        const vec left = load(strip + k * STRIP), right = load(strip + k * STRIP + LANES);
        EACH(i, m) {
            const vec by = broadcast(a[i * step + k]);
            x[i][0] += by * left;
            x[i][1] += by * right;
        }
    }
    EACH(i, m) store(to + i * step, x[i][0]), store(to + i * step + LANES, x[i][1]);
}

/* to += a B for n rows: one strip of B after the other, each used by all rows while it is in the nearest cache. */
static void product(const crew *w, real *to, const real *a, const real *strips, int64_t columns, int64_t depth) {
    const int64_t step = w->step;
    for (int64_t s = 0; s < columns; s += STRIP, strips += depth * STRIP)
        for (int64_t i = 0, left = w->n, m; left; i += m, left -= m) {
            const int64_t tiles = (left + TALL - 1) / TALL;
            real *const here = to + i * step + s;
            switch (m = (left + tiles - 1) / tiles) {
                case 1: tile(1, here, a + i * step, step, strips, depth); break;
                case 2: tile(2, here, a + i * step, step, strips, depth); break;
                case 3: tile(3, here, a + i * step, step, strips, depth); break;
                case 4: tile(4, here, a + i * step, step, strips, depth); break;
                case 5: tile(5, here, a + i * step, step, strips, depth); break;
                default: tile(6, here, a + i * step, step, strips, depth);
            }
        }
}

/* ---- what the kinds have in common ---- */

INLINE int64_t gates_of(int64_t kind) { return kind <= RNN_RELU ? 1 : kind <= GRU_AFTER ? 3 : 4; }
/* Gates whose product with h is made first; the GRU that resets before makes that of n later, with r h. */
INLINE int64_t first_of(int64_t kind) { return kind == GRU_BEFORE ? 2 : gates_of(kind); }
/* The second product, H by H, if there is one: of the GRU that resets before and of the gate that sees the cell. */
INLINE int has_inner(int64_t kind) { return kind == GRU_BEFORE || kind == LSTM_CELL; }

#define ROWS_OF(w, i) for (int64_t i = 0; i < (w)->n; i++)
#define LANES_OF(w, j) for (int64_t j = 0; j < (w)->Hp; j += LANES)
#define LIVE(w, i, t) (!(w)->a->lengths || (t) < (w)->a->lengths[(w)->first + (i)])
/* Row i at time t of a tensor [B][T][wide], NULL where it is absent. */
#define PLACE(w, x, i, t, wide) ((x) ? (x) + (((w)->first + (i)) * (w)->a->length + (t)) * (wide) : NULL)
#define GATE(w, i, g) ((w)->gate + (i) * (w)->step + (g) * (w)->Hp)
#define ROW(w, x, i) ((w)->x + (i) * (w)->step)

/* A row [B][H] into scratch, zeros around it and where it is absent; and back. */
static void enter(const crew *w, real *to, const real *from) {
    ROWS_OF(w, i) LANES_OF(w, j) store(to + i * w->step + j, take(from ? from + (w->first + i) * w->H : NULL, j, w->H));
}
static void leave(const crew *w, real *to, const real *from) {
    ROWS_OF(w, i) LANES_OF(w, j) put(to ? to + (w->first + i) * w->H : NULL, j, w->H, load(from + i * w->step + j));
}

/* ---- forward ---- */

/* The gates before any product: what the inputs give, or v where the gate has its own constant. */
static void begin(const crew *w, int64_t t) {
    const arguments *const a = w->a;
    ROWS_OF(w, i) for (int64_t g = 0; g < w->G; g++) {
        const int own = (w->kind == GRU_AFTER && g == 2) || (w->kind == LSTM_CELL && g == 3);
        const real *const from = own ? a->vector : PLACE(w, a->p, i, t, w->given * w->H) + g * w->H;
        LANES_OF(w, j) store(GATE(w, i, g) + j, take(from, j, w->H));
    }
}

/* Between the two products: r, z of a GRU, and r h; i, f, g of an LSTM, and the new cell. */
static void middle(const crew *w, int64_t t) {
    ROWS_OF(w, i) {
        if (!LIVE(w, i, t)) continue;
        real *const one = GATE(w, i, 0), *const two = GATE(w, i, 1), *const three = GATE(w, i, 2);
        if (w->kind >= LSTM)
            LANES_OF(w, j) {
                const vec in = sigmoid(load(one + j)), keep = sigmoid(load(two + j)), new = vtanh(load(three + j));
                store(one + j, in), store(two + j, keep), store(three + j, new);
                store(ROW(w, cell, i) + j, keep * load(ROW(w, cell, i) + j) + in * new);
            }
        else
            LANES_OF(w, j) {
                const vec reset = sigmoid(load(one + j));
                store(one + j, reset), store(two + j, sigmoid(load(two + j)));
                store(ROW(w, side, i) + j, reset * load(ROW(w, state, i) + j));
            }
    }
}

/* The new state of one row, its gates all known now. */
INLINE void renew(const crew *w, int64_t i, int64_t t) {
    const arguments *const a = w->a;
    real *const h = ROW(w, state, i), *const last = GATE(w, i, w->G - 1);
    const real *const given = w->kind == GRU_AFTER ? PLACE(w, a->p, i, t, 3 * w->H) + 2 * w->H : NULL;
    LANES_OF(w, j) {
        const vec x = load(last + j);
        if (w->kind == RNN_TANH)
            store(h + j, vtanh(x));
        else if (w->kind == RNN_RELU)
            store(h + j, vmax(x, (vec){0}));
        else if (w->kind >= LSTM) {
            const vec c = load(ROW(w, cell, i) + j);
            const vec open = sigmoid(w->kind == LSTM_PEEPHOLE ? x + take(a->vector, j, w->H) * c : x);
            store(last + j, open), store(h + j, open * vtanh(c));
        } else {
            const vec keep = load(GATE(w, i, 1) + j);
            const vec new = vtanh(given ? take(given, j, w->H) + load(GATE(w, i, 0) + j) * x : x);
            /* the gate before its reset is kept instead of the new state, which follows from it */
            if (!given) store(last + j, new);
            store(h + j, keep * load(h + j) + (1 - keep) * new);
        }
    }
}

static void finish(const crew *w, int64_t t) {
    const arguments *const a = w->a;
    ROWS_OF(w, i) {
        const int live = LIVE(w, i, t);
        if (live) renew(w, i, t);
        LANES_OF(w, j) {
            put(PLACE(w, a->out, i, t, w->H), j, w->H, load(ROW(w, state, i) + j));
            if (a->cells) put(PLACE(w, a->cells, i, t, w->H), j, w->H, load(ROW(w, cell, i) + j));
        }
        for (int64_t g = 0; g < w->G && a->gates; g++)
            LANES_OF(w, j) put(PLACE(w, a->gates, i, t, w->G * w->H) + g * w->H, j, w->H, live ? load(GATE(w, i, g) + j) : (vec){0});
    }
}

static void forward(const crew *w) {
    const arguments *const a = w->a;
    enter(w, w->state, a->h);
    enter(w, w->cell, a->c);
    memset(w->side, 0, (size_t)(w->n * w->step) * sizeof(real));
    for (int64_t t = 0; t < a->length; t++) {
        begin(w, t);
        product(w, w->gate, w->state, w->outer, first_of(w->kind) * w->Hp, w->H);
        if (w->kind > RNN_RELU) middle(w, t);
        if (has_inner(w->kind)) product(w, GATE(w, 0, w->G - 1), w->kind == LSTM_CELL ? w->cell : w->side, w->inner, w->Hp, w->H);
        finish(w, t);
    }
    leave(w, a->last_h, w->state);
    leave(w, a->last_c, w->cell);
}

/* ---- backward: `state` and `cell` hold the gradients of h and c, `gate` those of the gates before their bend ---- */

/* The row of h or c before step t. */
#define BEFORE(w, x, first_x, i, t) ((t) ? PLACE(w, x, i, (t) - 1, (w)->H) : (first_x) ? (first_x) + ((w)->first + (i)) * (w)->H : NULL)

/* What needs only the gradient of h: the last gate, and how much of it reaches the old state or the cell. */
INLINE void undo_last(const crew *w, int64_t i, int64_t t) {
    const arguments *const a = w->a;
    const int64_t H = w->H, kind = w->kind;
    const real *const kept = PLACE(w, a->gates, i, t, w->G * H), *const out = PLACE(w, a->out, i, t, H);
    const real *const c = PLACE(w, a->cells, i, t, H), *const old = BEFORE(w, a->out, a->h, i, t);
    const real *const given = kind == GRU_AFTER ? PLACE(w, a->p, i, t, 3 * H) + 2 * H : NULL;
    real *const dh = ROW(w, state, i), *const last = GATE(w, i, w->G - 1);
    LANES_OF(w, j) {
        const vec d = load(dh + j);
        if (kind <= RNN_RELU) {
            const vec h = take(out, j, H);
            store(last + j, kind == RNN_TANH ? d * (1 - h * h) : choose(h > 0, d, (vec){0}));
            store(dh + j, (vec){0});
        } else if (kind >= LSTM) {
            const vec open = take(kept + 3 * H, j, H), bent = vtanh(take(c, j, H)), slope = d * bent * open * (1 - open);
            vec dc = load(ROW(w, cell, i) + j) + d * open * (1 - bent * bent);
            if (kind == LSTM_PEEPHOLE) dc += slope * take(a->vector, j, H);
            store(last + j, slope), store(ROW(w, cell, i) + j, dc), store(dh + j, (vec){0});
        } else {
            const vec reset = take(kept, j, H), keep = take(kept + H, j, H), x = take(kept + 2 * H, j, H);
            const vec new = given ? vtanh(take(given, j, H) + reset * x) : x, slope = d * (1 - keep) * (1 - new * new);
            store(GATE(w, i, 1) + j, d * (take(old, j, H) - new) * keep * (1 - keep));
            store(dh + j, d * keep);
            if (given) {
                store(GATE(w, i, 0) + j, slope * x * reset * (1 - reset)), store(last + j, slope * reset);
                put(PLACE(w, a->dp, i, t, 3 * H) + 2 * H, j, H, slope);
            } else
                store(last + j, slope), store(ROW(w, side, i) + j, (vec){0});
        }
    }
}

/* The other gates, once the second product has been undone. */
INLINE void undo_first(const crew *w, int64_t i, int64_t t) {
    const arguments *const a = w->a;
    const int64_t H = w->H;
    const real *const kept = PLACE(w, a->gates, i, t, w->G * H);
    if (w->kind >= LSTM) {
        const real *const old = BEFORE(w, a->cells, a->c, i, t);
        LANES_OF(w, j) {
            const vec in = take(kept, j, H), keep = take(kept + H, j, H), new = take(kept + 2 * H, j, H);
            const vec dc = load(ROW(w, cell, i) + j);
            store(GATE(w, i, 0) + j, dc * new * in * (1 - in));
            store(GATE(w, i, 1) + j, dc * take(old, j, H) * keep * (1 - keep));
            store(GATE(w, i, 2) + j, dc * in * (1 - new * new));
            store(ROW(w, cell, i) + j, dc * keep);
        }
    } else if (w->kind == GRU_BEFORE) {
        const real *const old = BEFORE(w, a->out, a->h, i, t);
        LANES_OF(w, j) {
            const vec reset = take(kept, j, H), d = load(ROW(w, side, i) + j);
            store(GATE(w, i, 0) + j, d * take(old, j, H) * reset * (1 - reset));
            store(ROW(w, state, i) + j, load(ROW(w, state, i) + j) + d * reset);
        }
    }
}

static void backward(const crew *w) {
    const arguments *const a = w->a;
    enter(w, w->state, a->dlast_h);
    enter(w, w->cell, a->dlast_c);
    memset(w->side, 0, (size_t)(w->n * w->step) * sizeof(real));
    for (int64_t t = a->length - 1; t >= 0; t--) {
        ROWS_OF(w, i) {
            real *const dh = ROW(w, state, i);
            LANES_OF(w, j) store(dh + j, load(dh + j) + take(PLACE(w, a->dout, i, t, w->H), j, w->H));
            if (LIVE(w, i, t))
                undo_last(w, i, t);
            else {
                memset(GATE(w, i, 0), 0, (size_t)(w->G * w->Hp) * sizeof(real));
                memset(a->dp + ((w->first + i) * a->length + t) * w->given * w->H, 0, (size_t)(w->given * w->H) * sizeof(real));
            }
        }
        if (has_inner(w->kind)) product(w, w->kind == LSTM_CELL ? w->cell : w->side, GATE(w, 0, w->G - 1), w->inner, w->Hp, w->Hp);
        ROWS_OF(w, i) {
            if (LIVE(w, i, t)) undo_first(w, i, t);
            for (int64_t g = 0; g < w->G; g++) {
                const int own = (w->kind == GRU_AFTER && g == 2) || (w->kind == LSTM_CELL && g == 3);
                real *const to = own ? PLACE(w, a->dheld, i, t, w->H) : PLACE(w, a->dp, i, t, w->given * w->H) + g * w->H;
                LANES_OF(w, j) put(to, j, w->H, load(GATE(w, i, g) + j));
            }
        }
        product(w, w->state, w->gate, w->outer, w->Hp, first_of(w->kind) * w->Hp);
    }
    leave(w, a->dh, w->state);
    leave(w, a->dc, w->cell);
}

/* ---- the whole batch ---- */

/* Packs the weights, cuts the batch into one part for each thread and runs them. */
static int everyone(const arguments *a, int back) {
    const int64_t kind = a->kind, H = a->width, Hp = whole_strips(H), G = gates_of(kind), first = first_of(kind);
    const int64_t threads = a->threads < a->rows ? a->threads : a->rows, each = (a->rows + threads - 1) / threads;
    const int64_t step = G * Hp + SKEW, block = each * step, deep = back ? Hp : H, size = deep * Hp;
    real *const packed = reals((size_t)((first + 1) * size)), *const scratch = reals((size_t)(threads * 4 * block));
    if (packed && scratch) {
        real *const inner = packed + first * size;
        for (int64_t g = 0; g < first; g++) /* backward: one matrix as deep as all gates together */
            if (back)
                for (int64_t s = 0; s < Hp; s += STRIP)
                    pack(packed + s * first * Hp + g * Hp * STRIP, a->weight + g * H * H + s, H, 1, H, H - s < STRIP ? H - s : STRIP, Hp);
            else
                pack(packed + g * size, a->weight + g * H * H, 1, H, H, H, H);
        const real *const second = kind == GRU_BEFORE ? a->weight + 2 * H * H : a->inner;
        if (has_inner(kind)) pack(inner, second, back ? H : 1, back ? 1 : H, H, H, deep);
#pragma omp parallel for num_threads(threads) schedule(static, 1)
        for (int64_t part = 0; part < threads; part++) {
            const int64_t from = part * each, n = a->rows - from < each ? a->rows - from : each;
            real *const mine = scratch + part * 4 * block;
            const crew w = {a, kind, H, Hp, G, kind == LSTM_CELL ? 3 : G, from, n, step, packed, inner,
                            mine, mine + block, mine + 2 * block, mine + 3 * block};
            if (n > 0) (back ? backward : forward)(&w);
        }
    }
    const int failed = !packed || !scratch;
    free(packed), free(scratch);
    return failed;
}

int EXPORT(gates_forward)(const arguments *a) { return everyone(a, 0); }
int EXPORT(gates_backward)(const arguments *a) { return everyone(a, 1); }
