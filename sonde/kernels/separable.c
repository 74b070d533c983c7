/* The separable recurrence, forward, backward and one step.

       S_t[c,w] = exp(head_t + key_t[c] + value_t[w]) S_{t-1}[c,w] + k_t[c] v_t[w]        out_t[w] = sum_c q_t[c] S_t[c,w]

   Everything is one sweep: a state is written with an outer product and read with a vector, step after step.

       out   forward in time    reads with q      writes k (x) v
       dq    forward in time    reads with dout   writes v (x) k
       dv    backward in time   reads with k      writes q (x) dout
       dk    backward in time   reads with v      writes dout (x) q

   Vector lanes always run over the axis that is kept, so there are no sums across lanes.

   A sweep goes in blocks of a few steps.  Inside a block the decays are taken out of the state: with b_t the sum of the
   log decays from the block's first step (not counted) to step t, and r half of its last value, what is read at t is
   scaled by exp(b_t - r) (q, dout) and what is written by exp(r - b_t) (k, v); the state then only grows, in registers,
   and a block's step costs two multiply-adds per entry.  The decay of the first step and both halves r are applied to
   the state between blocks.  A block ends early where its decays would leave the range of the numbers, so any decay is
   exact, even exp(-inf): in the extreme every block is one step.

   Read "before" (out_t = S_{t-1}^T q_t) is the same with all reads one step later: step n writes time n - 1 and reads
   at time n, from n = 0 to L; nothing is written at step 0.

   Where an axis has gates, a sweep reads the state just before the step's own write, and the step's own term
   (out_t += (q_t . k_t) v_t) is added at the end: with db = q dq - k dk (key axis) or out dout - v dv (value axis), the gradient of a
   gate is the sum of db from its step to the end.  Own terms would cancel in db, and under strong decay they are nearly
   all of it, so db is made without them.  Long sums cancel too, so they begin again at every checkpoint from the exact
   <S, dS>. */
#include "_real.h"

typedef struct {
    view q, k, v, log_head, log_key, log_value, state;
    view out, final, past;  /* forward; past is out without the step's own term, wanted for the gradient of log_value */
    view dout, dfinal, dq, dk, dv, dlog_head, dlog_key, dlog_value, dstate; /* backward */
    int64_t rows, heads, share, length, key, value, before, threads; /* share: heads that use the same q and k */
} arguments;

enum { STEPS = 16, CHUNK = 64, ROWS = VECTOR_BYTES == 64 ? 8 : 4, PANEL = 2 * LANES, PAD = LANES > ROWS ? LANES : ROWS };

#if REAL_BITS == 64
#define RANGE 500   /* nats of decay inside a block: exp(RANGE / 2) and products of it stay far from overflow */
#define FORGOTTEN 72 /* nats after which nothing of the state is left above rounding, squared */
#else
#define RANGE 60
#define FORGOTTEN 32
#endif
#define CHECKPOINT_BYTES ((int64_t)8 << 20) /* per thread */

INLINE int64_t padded(int64_t n) { return (n + PAD - 1) / PAD * PAD; }
INLINE int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }
INLINE int64_t most(int64_t a, int64_t b) { return a > b ? a : b; }

/* ---- one block of a sweep ---- */

/* Rows of the caller's tensors that the next block needs.  A sweep works on what is in cache and can fetch them meanwhile:
   each tile asks for one column of cache lines, a line at every step. */
typedef struct {
    int64_t parts, steps; /* tensors, rows of each */
    int64_t part_now, byte_now;
    struct {
        const char *rows;
        int64_t step, bytes;
    } part[8];
} ahead;

static void expect(ahead *x, view from, int64_t time, int64_t width, int64_t length) {
    if (!from.data || x->steps <= 0 || time < 0 || time + x->steps > length) return; /* at the ends of the sequence a little is not fetched */
    x->part[x->parts].rows = (const char *)(from.data + time * from.time);
    x->part[x->parts].step = from.time * (int64_t)sizeof(real);
    x->part[x->parts++].bytes = width * (int64_t)sizeof(real);
}

/* The next column of lines, and the way from line to line; when all are fetched, a line that is at hand. */
INLINE const char *column(ahead *x, const void *at_hand, int64_t *step) {
    *step = 0;
    if (x->part_now == x->parts) return at_hand;
    const char *p = x->part[x->part_now].rows + x->byte_now;
    *step = x->part[x->part_now].step;
    if ((x->byte_now += 64) >= x->part[x->part_now].bytes) x->byte_now = 0, x->part_now++;
    return p;
}

/* ROWS rows of the state, `wide` vectors each, in registers over all steps.  `read` and `write` go down the rows.  The
   first arguments are constants where it is called: is a step read after its own write, which axes have factors. */
INLINE void tile(const int wide, const int after, const int scale_rows, const int scale_cols, int64_t steps, const real *read, const real *write, int64_t row_step, const real *cols,
                 real *out, int64_t col_step, real *state, const real *row_factor, const real *col_factor, ahead *next) {
    int64_t line_step;
    const char *line = column(next, state, &line_step);
    vec s[ROWS][2];
    for (int i = 0; i < ROWS; i++)
        for (int j = 0; j < wide; j++) {
            s[i][j] = load(state + (i * wide + j) * LANES);
            if (scale_cols) s[i][j] *= load(col_factor + j * LANES);
            if (scale_rows) s[i][j] *= row_factor[i];
        }
    for (int64_t t = 0; t < steps; t++, read += row_step, write += row_step, cols += col_step, out += col_step, line += line_step) {
        __builtin_prefetch(line, 0, 2);
        vec x[2], y[2];
        for (int j = 0; j < wide; j++) x[j] = load(cols + j * LANES), y[j] = load(out + j * LANES);
        for (int i = 0; i < ROWS; i++) {
            vec w = broadcast(write[i]), r = broadcast(read[i]);
            if (after)
                for (int j = 0; j < wide; j++) s[i][j] += w * x[j];
            for (int j = 0; j < wide; j++) y[j] += r * s[i][j];
            if (!after)
                for (int j = 0; j < wide; j++) s[i][j] += w * x[j];
        }
        for (int j = 0; j < wide; j++) store(out + j * LANES, y[j]);
    }
    for (int i = 0; i < ROWS; i++)
        for (int j = 0; j < wide; j++) store(state + (i * wide + j) * LANES, s[i][j]);
}

/* The whole state.  It is kept in panels of PANEL columns (the last may be one vector wide), all rows of a panel together. */
INLINE void sweep_of(const int after, const int scale_rows, const int scale_cols, int64_t steps, int backward, const real *read, const real *write, int64_t rows, const real *cols, real *out,
                  int64_t width, real *state, const real *row_factor, const real *col_factor, ahead *next) {
    memset(out, 0, (size_t)(steps * width) * sizeof(real));
    int64_t row_step = rows, col_step = width;
    if (backward) {
        int64_t last = steps - 1;
        read += last * rows, write += last * rows, cols += last * width, out += last * width;
        row_step = -rows, col_step = -width;
    }
    for (int64_t w = 0; w < width; w += PANEL) {
        const int64_t panel = least(PANEL, width - w);
        for (int64_t c = 0; c < rows; c += ROWS, state += ROWS * panel) {
            if (panel == PANEL)
                tile(2, after, scale_rows, scale_cols, steps, read + c, write + c, row_step, cols + w, out + w, col_step, state, row_factor + c, col_factor + w, next);
            else
                tile(1, after, scale_rows, scale_cols, steps, read + c, write + c, row_step, cols + w, out + w, col_step, state, row_factor + c, col_factor + w, next);
        }
    }
}

/* The same, made for each case: `after` reads a step after its own write; an axis without gates has no factors. */
static void sweep(int after, int scale_rows, int scale_cols, int64_t steps, int backward, const real *read, const real *write,
                  int64_t rows, const real *cols, real *out, int64_t width, real *state, const real *row_factor,
                  const real *col_factor, ahead *next) {
#define CASE(a, r, c)                                   \
    if (after == a && scale_rows == r && scale_cols == c) \
    sweep_of(a, r, c, steps, backward, read, write, rows, cols, out, width, state, row_factor, col_factor, next)
    CASE(0, 0, 0); CASE(0, 0, 1); CASE(0, 1, 0); CASE(0, 1, 1); CASE(1, 0, 0); CASE(1, 0, 1); CASE(1, 1, 0); CASE(1, 1, 1);
#undef CASE
}

/* What the step itself adds: read . write of each step. */
static void own_terms(int64_t steps, const real *read, const real *write, int64_t rows, real *own) {
    for (int64_t t = 0; t < steps; t++) {
        vec sum = {0};
        for (int64_t c = 0; c < rows; c += LANES) sum += load(read + t * rows + c) * load(write + t * rows + c);
        own[t] = total(sum);
    }
}

/* Where entry (row, column) of a state of so many padded rows and columns is kept. */
INLINE int64_t place(int64_t rows, int64_t width, int64_t row, int64_t column) {
    int64_t start = column / PANEL * PANEL, panel = least(PANEL, width - start);
    return start * rows + row * panel + column - start;
}

/* ---- decays of one axis inside a block ---- */

typedef struct {
    int64_t width, pad;
    int full, any;      /* a gate per channel; any gate at all */
    view gate, head;    /* of this row and head; absent ones are NULL */
    real *read, *write; /* [STEPS, pad] scales of what is read and written */
    real *factor;       /* [pad] the state's scale from block to block */
    real *carry;        /* [pad] log of the scale the state still lacks */
} axis;

INLINE vec gate_at(const axis *x, int64_t time, int64_t c) {
    if (time < 0) return (vec){0};
    vec g = {0};
    if (x->full) {
        const real *p = x->gate.data + time * x->gate.time + c;
        g = c + LANES <= x->width ? load(p) : c < x->width ? load_some(p, (int)(x->width - c)) : g;
    }
    return x->head.data ? g + x->head.data[time * x->head.time] : g;
}

INLINE vec magnitude(vec x) { return (vec)((wvec)x & ~((wvec)broadcast((real)-0.0))); }

/* How many nats the channel that decays most loses in the block beginning at `time`, its first step not counted. */
static real span(const axis *x, int64_t time, int64_t steps) {
    vec worst = {0};
    for (int64_t c = 0; c < (x->full ? x->width : 1) && x->any; c += LANES) {
        vec sum = {0};
        for (int64_t t = 1; t < steps; t++) {
            sum += magnitude(gate_at(x, time + t, c));
        }
        worst = vmax(sum, worst);
    }
    real result = 0;
    for (int i = 0; i < LANES; i++)
        if (worst[i] > result) result = worst[i];
    return result;
}

/* The same for `wide` vectors of channels together, so that one's chains of products fill the other's waiting. */
INLINE void enter_columns(const int wide, axis *x, int64_t time, int64_t steps, int backward, int64_t c) {
    vec decay[STEPS][2], product[STEPS][2], half[2], scale[2];
    for (int j = 0; j < wide; j++) half[j] = (vec){0}, product[0][j] = broadcast(1);
    for (int64_t t = 1; t < steps; t++)
        for (int j = 0; j < wide; j++) {
            const vec g = gate_at(x, time + t, c + j * LANES);
            half[j] += g * (real)0.5;
            decay[t][j] = vexp_near(g);
            product[t][j] = product[t - 1][j] * decay[t][j];
        }
    vec start[2];
    for (int j = 0; j < wide; j++) scale[j] = start[j] = vexp_near(-half[j]);
    for (int64_t t = steps - 1; t >= 0; t--)
        for (int j = 0; j < wide; j++) {
            const int64_t i = t * x->pad + c + j * LANES;
            store(x->read + i, start[j] * product[t][j]);
            store(x->write + i, scale[j]);
            if (t) scale[j] *= decay[t][j];
        }
    for (int j = 0; j < wide; j++) {
        const int64_t i = c + j * LANES;
        const vec first = gate_at(x, time, i), carry = load(x->carry + i);
        store(x->factor + i, vexp(backward ? carry + half[j] : carry + first + half[j]));
        store(x->carry + i, backward ? half[j] + first : half[j]);
    }
}

/* Scales of the block beginning at `time`, and the factor that brings the state into it. */
static void enter(axis *x, int64_t time, int64_t steps, int backward) {
    if (!x->any) return;
    const int64_t width = x->full ? x->pad : LANES;
    int64_t c = 0;
    for (; c + 2 * LANES <= width; c += 2 * LANES) enter_columns(2, x, time, steps, backward, c);
    if (c < width) enter_columns(1, x, time, steps, backward, c);
    if (!x->full)
        for (c = LANES; c < x->pad; c++) x->factor[c] = x->factor[0], x->carry[c] = x->carry[0];
}

static void restart(axis *x) {
    for (int64_t c = 0; c < x->pad; c++) x->carry[c] = 0, x->factor[c] = 1;
}

/* The scale of step t, channels c.., `scales` being x->read or x->write. */
INLINE vec scale_at(const axis *x, const real *scales, int64_t t, int64_t c) {
    return !x->any ? broadcast(1) : x->full ? load(scales + t * x->pad + c) : broadcast(scales[t * x->pad]);
}

/* ---- between the caller's tensors and a block ---- */

/* Rows time.. of a tensor, scaled, into [steps, pad]; times outside the sequence are zero. */
static void take(const axis *x, view from, int64_t time, int64_t steps, int64_t length, const real *scales, real *to) {
    for (int64_t t = 0; t < steps; t++, to += x->pad) {
        const real *p = from.data + (time + t) * from.time;
        const int inside = time + t >= 0 && time + t < length;
        int64_t c = 0;
        if (inside)
            for (; c + LANES <= x->width; c += LANES) store(to + c, load(p + c) * scale_at(x, scales, t, c));
        for (; c < x->pad; c += LANES) {
            int some = inside && c < x->width ? (int)(x->width - c) : 0;
            store(to + c, load_some(p + (some ? c : 0), some) * scale_at(x, scales, t, c));
        }
    }
}

/* The rows made by a sweep, with the steps' own terms when `own` is given, to rows time.. of a tensor. */
static void give(const axis *x, const real *from, const real *own, const real *cols, int64_t time, int64_t steps, int64_t length,
                 const real *scales, view to) {
    for (int64_t t = 0; t < steps; t++, from += x->pad, cols += x->pad) {
        if (time + t < 0 || time + t >= length) continue;
        real *p = to.data + (time + t) * to.time;
        for (int64_t c = 0; c < x->width; c += LANES) {
            vec y = (own ? load(from + c) + own[t] * load(cols + c) : load(from + c)) * scale_at(x, scales, t, c);
            if (c + LANES <= x->width)
                store(p + c, y);
            else
                store_some(p + c, y, (int)(x->width - c));
        }
    }
}

/* A state [K, V] of the caller into panels (rows x columns, either axis may be the rows), and back with the scale it lacks. */
static void take_state(const axis *rows, const axis *cols, const real *from, int64_t row_step, int64_t col_step, real *to) {
    memset(to, 0, (size_t)(rows->pad * cols->pad) * sizeof(real));
    if (!from) return;
    for (int64_t r = 0; r < rows->width; r++)
        for (int64_t c = 0; c < cols->width; c++) to[place(rows->pad, cols->pad, r, c)] = from[r * row_step + c * col_step];
}

static void give_state(const axis *rows, const axis *cols, const real *from, real *to, int64_t row_step) {
    for (int64_t r = 0; r < rows->pad; r += LANES) store(rows->factor + r, vexp(load(rows->carry + r)));
    for (int64_t c = 0; c < cols->pad; c += LANES) store(cols->factor + c, vexp(load(cols->carry + c)));
    for (int64_t r = 0; r < rows->width; r++)
        for (int64_t c = 0; c < cols->width; c++)
            to[r * row_step + c] = from[place(rows->pad, cols->pad, r, c)] * rows->factor[r] * cols->factor[c];
}

/* ---- one thread's working memory ---- */

typedef struct {
    axis key, value;
    real *q, *k, *v, *dout, *made; /* a block of each, scaled; `made` is what a sweep puts out */
    real *state, *turned;          /* [key, value] and [value, key] panels */
    real *suffix_key, *suffix_value, *checkpoints;
    int64_t *starts; /* first step of every block */
} bench;

INLINE view of(view x, int64_t row, int64_t head) {
    if (x.data) x.data += row * x.row + head * x.head;
    return x;
}

/* Cuts one allocation into the parts; with base NULL it only counts. */
static size_t lay_out(bench *b, const arguments *a, int backward, int64_t chunks, real *base) {
    const int64_t key = padded(a->key), value = padded(a->value), wide = most(key, value), steps = a->length + 1;
    real *p = base;
#define PART(name, n) b->name = p, p += ((size_t)(n) + 15) / 16 * 16
    PART(key.read, STEPS * key), PART(key.write, STEPS * key), PART(key.factor, key), PART(key.carry, key);
    PART(value.read, STEPS * value), PART(value.write, STEPS * value), PART(value.factor, value), PART(value.carry, value);
    PART(q, STEPS * key), PART(k, STEPS * key), PART(v, STEPS * value), PART(made, STEPS * wide), PART(state, key * value);
    if (backward) {
        PART(dout, STEPS * value), PART(turned, key * value), PART(suffix_key, key), PART(suffix_value, value);
        PART(checkpoints, chunks * key * value);
        b->starts = (int64_t *)p, p += (size_t)(steps + 1) * sizeof(int64_t) / sizeof(real);
    }
#undef PART
    return (size_t)(p - base);
}

static void sit_down(bench *b, const arguments *a, int64_t row, int64_t head) {
    axis *key = &b->key, *value = &b->value;
    key->width = a->key, key->pad = padded(a->key), value->width = a->value, value->pad = padded(a->value);
    key->gate = of(a->log_key, row, head), key->head = of(a->log_head, row, head), value->gate = of(a->log_value, row, head);
    value->head = (view){0};
    key->full = key->gate.data != NULL, value->full = value->gate.data != NULL;
    key->any = key->full || key->head.data, value->any = value->full;
    restart(key), restart(value);
}

/* How long the block beginning at step n may be. */
static int64_t block(const bench *b, int64_t time, int64_t room) {
    int64_t steps = least(STEPS, room);
    while (steps > 1 && span(&b->key, time, steps) + span(&b->value, time, steps) > RANGE) steps /= 2;
    return steps;
}

/* ---- forward ---- */

static void forward(bench *b, const arguments *a, int64_t row, int64_t head) {
    sit_down(b, a, row, head);
    axis *key = &b->key, *value = &b->value;
    const view q = of(a->q, row, head / a->share), k = of(a->k, row, head / a->share), v = of(a->v, row, head);
    const view out = of(a->out, row, head), past = of(a->past, row, head);
    const view state = of(a->state, row, head), final = of(a->final, row, head);
    const int64_t late = a->before ? 1 : 0, end = a->length + late;
    real own[STEPS];
    take_state(key, value, state.data, state.time, 1, b->state);
    for (int64_t n = 0, steps; n < end; n += steps) {
        const int64_t time = n - late;
        steps = block(b, time, end - n);
        enter(key, time, steps, 0), enter(value, time, steps, 0);
        take(key, q, n, steps, a->length, key->read, b->q);
        take(key, k, time, steps, a->length, key->write, b->k);
        take(value, v, time, steps, a->length, value->write, b->v);
        ahead next = {.steps = least(STEPS, end - n - steps)};
        expect(&next, q, n + steps, a->key, a->length), expect(&next, k, time + steps, a->key, a->length);
        expect(&next, v, time + steps, a->value, a->length), expect(&next, key->gate, time + steps, a->key, a->length);
        expect(&next, value->gate, time + steps, a->value, a->length), expect(&next, out, n, a->value, a->length);
        sweep(!past.data, key->any, value->any, steps, 0, b->q, b->k, key->pad, b->v, b->made, value->pad, b->state, key->factor,
              value->factor, &next);
        if (past.data) {
            give(value, b->made, NULL, b->v, n, steps, a->length, value->read, past);
            own_terms(steps, b->q, b->k, key->pad, own);
        }
        give(value, b->made, past.data ? own : NULL, b->v, n, steps, a->length, value->read, out);
    }
    give_state(key, value, b->state, final.data, final.time);
}

/* ---- backward ---- */

/* The state as it enters the last step.  No decay comes after that step's own write, so <S, dS> is taken without it. */
static void keep_scaled(const bench *b, real *to) {
    const axis *key = &b->key, *value = &b->value;
    for (int64_t c = 0; c < key->pad; c += LANES) {
        const int64_t panel = least(PANEL, key->pad - c / PANEL * PANEL), from = place(value->pad, key->pad, 0, c);
        for (int64_t w = 0; w < value->pad; w++)
            store(to + from + w * panel, load(b->turned + from + w * panel) * load(key->factor + c) * value->factor[w]);
    }
}

/* <S, dS> summed over each axis: where the sums of gate gradients begin again.  dS is still to be scaled by the factors. */
static void meet(bench *b, const real *saved) {
    const axis *key = &b->key, *value = &b->value;
    for (int64_t w = 0; w < value->pad; w++) b->suffix_value[w] = 0;
    for (int64_t c = 0; c < key->pad; c += LANES) {
        const int64_t panel = least(PANEL, key->pad - c / PANEL * PANEL), from = place(value->pad, key->pad, 0, c);
        const vec factor = load(key->factor + c);
        vec down = {0};
        for (int64_t w = 0; w < value->pad; w++) {
            const vec both = load(saved + from + w * panel) * (load(b->turned + from + w * panel) * (value->factor[w] * factor));
            down += both;
            if (value->any) b->suffix_value[w] += total(both);
        }
        store(b->suffix_key + c, down);
    }
}

/* The gradients of an axis's gates in a block: db added to the running sums, last step first.  `write` and `made` are in
   the block's scale, which cancels in their product.  A gate that forgets everything has no gradient, and what came
   before it is a sum of its own.  At the last step `write` is NULL: its part was left out of <S, dS>. */
static void settle(const axis *x, const real *write, const real *made, view read, view dread, int64_t n, int64_t time, int64_t steps,
                   int64_t length, real *suffix, view to, view to_head) {
    vec sums[STEPS] = {{0}};
    for (int64_t c = 0; c < x->width; c += LANES) {
        const int some = (int)least(LANES, x->width - c);
        vec here = load(suffix + c);
        for (int64_t t = steps - 1; t >= 0; t--) {
            vec db = write ? -load(write + t * x->pad + c) * load(made + t * x->pad + c) : (vec){0};
            if (n + t < length) {
                const real *p = read.data + (n + t) * read.time + c, *dp = dread.data + (n + t) * dread.time + c;
                db += some == LANES ? load(p) * load(dp) : load_some(p, some) * load_some(dp, some);
            }
            const wvec forgotten = gate_at(x, time + t, c) < (real)-FORGOTTEN;
            here = (vec)(~forgotten & (wvec)(here + db));
            sums[t] += here;
            if (!to.data || time + t < 0) continue;
            if (some == LANES)
                store(to.data + (time + t) * to.time + c, here);
            else
                store_some(to.data + (time + t) * to.time + c, here, some);
        }
        store(suffix + c, here);
    }
    if (to_head.data)
        for (int64_t t = most(0, -time); t < steps; t++) to_head.data[(time + t) * to_head.time] = total(sums[t]);
}

/* Adds the steps' own terms to rows already given. */
static void add_own(const axis *x, const real *own, const real *cols, int64_t time, int64_t steps, int64_t length, const real *scales,
                    view to) {
    for (int64_t t = 0; t < steps; t++, cols += x->pad) {
        if (time + t >= length) continue;
        real *p = to.data + (time + t) * to.time;
        for (int64_t c = 0; c < x->width; c += LANES) {
            vec y = own[t] * load(cols + c) * scale_at(x, scales, t, c);
            if (c + LANES <= x->width)
                store(p + c, load(p + c) + y);
            else
                store_some(p + c, load_some(p + c, (int)(x->width - c)) + y, (int)(x->width - c));
        }
    }
}

static void backward(bench *b, const arguments *a, int64_t row, int64_t head, int64_t chunk) {
    sit_down(b, a, row, head);
    axis *key = &b->key, *value = &b->value;
    const view q = of(a->q, row, head / a->share), k = of(a->k, row, head / a->share), v = of(a->v, row, head);
    const view past = of(a->past, row, head), dout = of(a->dout, row, head), state = of(a->state, row, head);
    const view dq = of(a->dq, row, head), dk = of(a->dk, row, head), dv = of(a->dv, row, head);
    const view dfinal = of(a->dfinal, row, head), dstate = of(a->dstate, row, head);
    const view dhead = of(a->dlog_head, row, head), dkey = of(a->dlog_key, row, head), dvalue = of(a->dlog_value, row, head);
    const int64_t late = a->before ? 1 : 0, end = a->length + late, size = key->pad * value->pad;
    const int gated = key->any || value->any;
    real own[STEPS];

    int64_t blocks = 0, chunks = 0;
    take_state(value, key, state.data, 1, state.time, b->turned);
    for (int64_t n = 0, steps; n < end; n += steps) {
        const int64_t time = n - late, stop = least(gated && n < end - 1 ? end - 1 : end, (n / chunk + 1) * chunk);
        steps = block(b, time, stop - n);
        b->starts[blocks++] = n;
        enter(key, time, steps, 0), enter(value, time, steps, 0);
        if (gated && n == end - 1) keep_scaled(b, b->checkpoints + size * chunks++);
        take(value, dout, n, steps, a->length, value->read, b->dout);
        take(value, v, time, steps, a->length, value->write, b->v);
        take(key, k, time, steps, a->length, key->write, b->k);
        ahead next = {.steps = least(STEPS, end - n - steps)};
        expect(&next, dout, n + steps, a->value, a->length), expect(&next, k, time + steps, a->key, a->length);
        expect(&next, v, time + steps, a->value, a->length), expect(&next, key->gate, time + steps, a->key, a->length);
        expect(&next, value->gate, time + steps, a->value, a->length), expect(&next, dq, n, a->key, a->length);
        sweep(!key->any, value->any, key->any, steps, 0, b->dout, b->v, value->pad, b->k, b->made, key->pad, b->turned, value->factor,
              key->factor, &next);
        give(key, b->made, NULL, b->k, n, steps, a->length, key->read, dq);
        if (gated && (n + steps) % chunk == 0 && n + steps < end)
            memcpy(b->checkpoints + size * chunks++, b->turned, (size_t)size * sizeof(real));
    }
    b->starts[blocks] = end;

    restart(key), restart(value);
    take_state(key, value, dfinal.data, dfinal.time, 1, b->state);
    take_state(value, key, dfinal.data, 1, dfinal.time, b->turned);
    while (blocks-- > 0) {
        const int64_t n = b->starts[blocks], stop = b->starts[blocks + 1], time = n - late, steps = stop - n;
        enter(key, time, steps, 1), enter(value, time, steps, 1);
        if (gated && (stop % chunk == 0 || n == end - 1)) meet(b, b->checkpoints + size * --chunks);
        take(key, q, n, steps, a->length, key->read, b->q);
        take(key, k, time, steps, a->length, key->write, b->k);
        take(value, v, time, steps, a->length, value->write, b->v);
        take(value, dout, n, steps, a->length, value->read, b->dout);

        const int64_t before = blocks ? b->starts[blocks - 1] : 0, wanted = blocks ? n - before : 0;
        ahead next = {.steps = wanted};
        expect(&next, q, before, a->key, a->length), expect(&next, k, before - late, a->key, a->length);
        expect(&next, v, before - late, a->value, a->length), expect(&next, dout, before, a->value, a->length);
        expect(&next, dk, time, a->key, a->length);
        if (key->full) expect(&next, dkey, time, a->key, a->length);
        sweep(!key->any, value->any, key->any, steps, 1, b->v, b->dout, value->pad, b->q, b->made, key->pad, b->turned, value->factor,
              key->factor, &next);
        if (key->any) {
            settle(key, n < end - 1 ? b->k : NULL, b->made, q, dq, n, time, steps, a->length, b->suffix_key, dkey, dhead);
            own_terms(steps, b->v, b->dout, value->pad, own);
            add_own(key, own, b->k, n, steps, a->length, key->read, dq);
        }
        give(key, b->made, key->any ? own : NULL, b->q, time, steps, a->length, key->write, dk);

        next = (ahead){.steps = wanted};
        expect(&next, key->gate, before - late, a->key, a->length), expect(&next, value->gate, before - late, a->value, a->length);
        expect(&next, dq, before, a->key, a->length);
        if (value->any) expect(&next, past, before, a->value, a->length);
        expect(&next, dv, time, a->value, a->length);
        if (value->full) expect(&next, dvalue, time, a->value, a->length);
        sweep(!value->any, key->any, value->any, steps, 1, b->k, b->q, key->pad, b->dout, b->made, value->pad, b->state, key->factor,
              value->factor, &next);
        if (value->any) {
            settle(value, n < end - 1 ? b->v : NULL, b->made, past, dout, n, time, steps, a->length, b->suffix_value, dvalue, (view){0});
            own_terms(steps, b->k, b->q, key->pad, own);
        }
        give(value, b->made, value->any ? own : NULL, b->dout, time, steps, a->length, value->write, dv);
    }
    give_state(key, value, b->state, dstate.data, dstate.time);
}

/* ---- what Python calls ---- */

static int run(const arguments *a, int back) {
    const int64_t steps = a->length + 1, tasks = a->rows * a->heads;
    const int64_t most_chunks = most(1, CHECKPOINT_BYTES / (int64_t)sizeof(real) / (padded(a->key) * padded(a->value)));
    const int64_t chunk = most(CHUNK, (steps + most_chunks - 1) / most_chunks), chunks = steps / chunk + 1;
    const int threads = (int)most(1, least(a->threads, tasks));
    bench plan = {0};
    const size_t each = lay_out(&plan, a, back, chunks, NULL);
    real *space = reals(each * (size_t)threads);
    if (!space) return 1;
#pragma omp parallel num_threads(threads)
    {
        bench own = {0};
        lay_out(&own, a, back, chunks, space + each * (size_t)worker());
#pragma omp for schedule(dynamic)
        for (int64_t task = 0; task < tasks; task++) {
            if (back)
                backward(&own, a, task / a->heads, task % a->heads, chunk);
            else
                forward(&own, a, task / a->heads, task % a->heads);
        }
    }
    free(space);
    return 0;
}

int EXPORT(separable_forward)(const arguments *a) { return run(a, 0); }
int EXPORT(separable_backward)(const arguments *a) { return run(a, 1); }

/* The usual whole vector costs no call. */
INLINE vec load_part(const real *p, int n) { return n == LANES ? load(p) : load_some(p, n); }
INLINE void store_part(real *p, vec x, int n) {
    if (n == LANES)
        store(p, x);
    else
        store_some(p, x, n);
}

/* One step on the caller's own state, without scratch. */
static void step(const arguments *a, int64_t row, int64_t head) {
    const real *q = at(a->q, row, head / a->share, 0), *k = at(a->k, row, head / a->share, 0), *v = at(a->v, row, head, 0);
    const real *log_key = a->log_key.data ? at(a->log_key, row, head, 0) : NULL;
    const real *log_value = a->log_value.data ? at(a->log_value, row, head, 0) : NULL;
    const real log_head = a->log_head.data ? *at(a->log_head, row, head, 0) : 0;
    real *out = at(a->out, row, head, 0), *state = at(a->state, row, head, 0);
    enum { GROUP = 64 };
    for (int64_t c = 0; c < a->key; c += GROUP) {
        const int64_t rows = least(GROUP, a->key - c);
        real decay[GROUP];
        for (int64_t i = 0; i < rows; i += LANES) {
            const int some = (int)least(LANES, rows - i);
            vec g = broadcast(log_head);
            if (log_key) g += load_part(log_key + c + i, some);
            store(decay + i, vexp(g));
        }
        for (int64_t w = 0; w < a->value; w += 4 * LANES) {
            vec x[4], y[4], fade[4];
            int some[4];
            for (int j = 0; j < 4; j++) {
                const int64_t from = w + j * LANES;
                some[j] = (int)most(0, least(LANES, a->value - from));
                x[j] = load_part(v + from, some[j]);
                y[j] = c ? load_part(out + from, some[j]) : (vec){0};
                fade[j] = log_value ? vexp(load_part(log_value + from, some[j])) : broadcast(1);
            }
            const int whole_group = some[3] == LANES;
            for (int64_t i = 0; i < rows; i++) {
                real *s = state + (c + i) * a->state.time + w;
                const vec read = broadcast(q[c + i]), write = broadcast(k[c + i]), f = broadcast(decay[i]);
                for (int j = 0; j < 4; j++) {
                    vec old = whole_group ? load(s + j * LANES) : load_some(s + j * LANES, some[j]);
                    vec new = old * (f * fade[j]) + write * x[j];
                    y[j] += read * (a->before ? old : new);
                    if (whole_group)
                        store(s + j * LANES, new);
                    else
                        store_some(s + j * LANES, new, some[j]);
                }
            }
            for (int j = 0; j < 4; j++) store_part(out + w + j * LANES, y[j], some[j]);
        }
    }
}

int EXPORT(separable_step)(const arguments *a) {
    const int64_t tasks = a->rows * a->heads;
    /* Below a few tens of microseconds of work a second thread costs more than it saves. */
    const int threads = tasks * a->key * a->value >= 1 << 18 ? (int)least(a->threads, tasks) : 1;
    if (threads == 1) { /* entering a parallel region costs as much as a small step */
        for (int64_t task = 0; task < tasks; task++) step(a, task / a->heads, task % a->heads);
        return 0;
    }
#pragma omp parallel for num_threads(threads)
    for (int64_t task = 0; task < tasks; task++) step(a, task / a->heads, task % a->heads);
    return 0;
}
