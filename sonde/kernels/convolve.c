/* Convolution of images with windows of 3 x 3 that keep their size, in a quarter of the products [winograd1980, lavin2016].

   An image is cut into tiles of 4 x 4 pixels.  Along one axis a tile of the result is a piece of a product of two polynomials, the
   pixels and the window, and such a product is known by its values at six points, where it costs one multiplication each.  Along
   both axes that is 6 x 6 points instead of 16 sums of 9 products.  With B, G and A the maps to the points and back, along one axis,

       v = B'd B       of the 6 x 6 pixels around the tile          y = A'(v u) A      of the result
       u = G w G'      of the window                                dw = G'(v (A dy A')) G

   The products v u are sums over channels: one matrix product [tiles, in] [in, out] for each of the 36 points.  The gradient
   of x is a convolution of dy with the windows turned round.

   The points are 0, +-3/4, +-3/2 and infinity.  The usual whole numbers would save no time here and cost digits: the error is two to
   three times that of a direct sum, with 1 and 2 it would be five to six times.

   Images of bfloat16 are added up in float.  Where the processor multiplies pairs of bfloat16 (PAIRS), the values at the points are
   rounded to such pairs, of two channels, or of two tiles in a gradient: the error is then two to three times 2^-8.

   Tiles are computed in the same order by any number of threads: it changes no bit.

   Legend: C channels read, K written; an image is [row][column][channel]. */
#include "_tile.h"

typedef struct {
    const stored *x, *other, *dy;                          /* other, which is added to the result, and bias may be NULL */
    stored *y;
    const real *weight, *bias;
    real *dweight, *u;                                     /* u: NULL, or what convolve_windows made of the weight */
    int64_t images, height, width, in, out, relu, threads; /* in, out: channels */
    int64_t of_out, of_in, of_row, of_column;              /* steps of weight and dweight */
} arguments;

enum { AROUND = 6, TILE = 4, POINTS = 36, BLOCK = 24, LINE = 64 / sizeof(real) };
/* Weights' gradients are summed over up to PARTS ranges of tiles, CHUNK rows of one or two tiles at a time, by one thread each and into sums of its own:
   threads that wait for each other often are slow on a busy machine.  Where these sums have more than LARGEST numbers all threads
   share one, and a chunk has SHARED numbers at the points. */
enum { PARTS = 8, CHUNK = 96, LARGEST = 1 << 20, SHARED = 1 << 22 };

#if STORED_BITS == 16 && defined(__AVX512BF16__)
#define PAIRS 1
typedef whole whole_anywhere __attribute__((may_alias));
INLINE vec sum_pairs(vec sum, vec a, vec b) { return (vec)_mm512_dpbf16_ps((__m512)sum, (__m512bh)a, (__m512bh)b); }
/* x in the lower half of each lane, or with `second` in the upper half beside what is there. */
INLINE void store_half(real *p, vec x, int64_t second) {
    const bits b = __builtin_convertvector(narrow(x), bits);
    store(p, (vec)(second ? (bits)load(p) | (b << 16) : b));
}
#else
#define PAIRS 0
#endif

/* Keep values at a point: one by one, or in pairs: neighboring channels from c on, or where c is -1 two tiles. */
INLINE void keep(real *to, vec x, int64_t c, int64_t second) {
#if PAIRS
    if (c < 0)
        store_half(to, x, second);
    else
        store_stored((stored *)to + c, x);
#else
    (void)second;
    store(to + (c < 0 ? 0 : c), x);
#endif
}

enum { TILES = 1 + PAIRS }; /* in a row of a gradient */

/* How many rows n numbers take that are multiplied one by one, or in pairs. */
INLINE int64_t paired(int64_t n) { return PAIRS ? (n + 1) / 2 : n; }

typedef struct {
    const arguments *a;
    int64_t across, down, tiles;  /* in a row, a column, the batch */
    int64_t Cp, Kp, parts, chunk; /* widths in whole vectors and strips, Cp of what `paired` gives; of gradients */
    real *zeros, *u;              /* zeros: a pixel outside; u [point][strip][paired C][STRIP], of gradients [part][point][C][Kp] */
} work;

/* ---- between values and points, one dimension ---- */

#define P ((real)0.75)
#define Q ((real)1.5)

/* B' d */
INLINE void to_points(const vec d[6], vec v[6]) {
    const vec even_p = d[4] - Q * Q * d[2], odd_p = d[3] - Q * Q * d[1], even_q = d[4] - P * P * d[2], odd_q = d[3] - P * P * d[1];
    v[0] = P * P * Q * Q * d[0] + (d[4] - (P * P + Q * Q) * d[2]);
    v[1] = even_p + P * odd_p, v[2] = even_p - P * odd_p;
    v[3] = even_q + Q * odd_q, v[4] = even_q - Q * odd_q;
    v[5] = P * P * Q * Q * d[1] + (d[5] - (P * P + Q * Q) * d[3]);
}

/* A' m */
INLINE void from_points(const vec m[6], vec y[4]) {
    const vec sum_p = m[1] + m[2], gap_p = m[1] - m[2], sum_q = m[3] + m[4], gap_q = m[3] - m[4];
    y[0] = m[0] + sum_p + sum_q;
    y[1] = P * gap_p + Q * gap_q;
    y[2] = P * P * sum_p + Q * Q * sum_q;
    y[3] = P * P * P * gap_p + (Q * Q * Q * gap_q + m[5]);
}

/* A y */
INLINE void gradient_to_points(const vec y[4], vec m[6]) {
    const vec even_p = P * P * y[2] + y[0], odd_p = P * P * y[3] + y[1], even_q = Q * Q * y[2] + y[0], odd_q = Q * Q * y[3] + y[1];
    m[0] = y[0], m[5] = y[3];
    m[1] = even_p + P * odd_p, m[2] = even_p - P * odd_p;
    m[3] = even_q + Q * odd_q, m[4] = even_q - Q * odd_q;
}

#define AT_0 (1 / (P * P * Q * Q))
#define AT_P (1 / (2 * P * P * (P * P - Q * Q)))
#define AT_Q (1 / (2 * Q * Q * (Q * Q - P * P)))

/* G w */
INLINE void window_to_points(const vec w[3], vec u[6]) {
    const vec even_p = P * P * w[2] + w[0], even_q = Q * Q * w[2] + w[0];
    u[0] = AT_0 * w[0], u[5] = w[2];
    u[1] = AT_P * (even_p + P * w[1]), u[2] = AT_P * (even_p - P * w[1]);
    u[3] = AT_Q * (even_q + Q * w[1]), u[4] = AT_Q * (even_q - Q * w[1]);
}

/* G' u */
INLINE void window_from_points(const vec u[6], vec w[3]) {
    const vec sum_p = AT_P * (u[1] + u[2]), gap_p = AT_P * (u[1] - u[2]), sum_q = AT_Q * (u[3] + u[4]), gap_q = AT_Q * (u[3] - u[4]);
    w[0] = AT_0 * u[0] + (sum_p + sum_q);
    w[1] = P * gap_p + Q * gap_q;
    w[2] = P * P * sum_p + (Q * Q * sum_q + u[5]);
}

/* Both dimensions: the map goes over the rows of a square of `from` and then over the columns, to `to` along each. */
#define BOTH(map, from, to, a, b)                                            \
    do {                                                                     \
        vec half_[from][to];                                                 \
        _Pragma("GCC unroll 6") for (int i_ = 0; i_ < (from); i_++) map((a)[i_], half_[i_]); \
        _Pragma("GCC unroll 6") for (int j_ = 0; j_ < (to); j_++) {           \
            vec column_[from], made_[to];                                    \
            _Pragma("GCC unroll 6") for (int i_ = 0; i_ < (from); i_++) column_[i_] = half_[i_][j_]; \
            map(column_, made_);                                             \
            _Pragma("GCC unroll 6") for (int i_ = 0; i_ < (to); i_++) (b)[i_][j_] = made_[i_]; \
        }                                                                    \
    } while (0)

/* ---- tiles ---- */

INLINE vec load_up_to(const real *p, int64_t left) { return left >= LANES ? load(p) : load_some(p, (int)left); }
INLINE vec load_stored_up_to(const stored *p, int64_t left) { return left >= LANES ? load_stored(p) : load_stored_some(p, (int)left); }
INLINE void store_stored_up_to(stored *p, vec x, int64_t left) {
    if (left >= LANES)
        store_stored(p, x);
    else
        store_stored_some(p, x, (int)left);
}

/* For every vector of n channels: a step with c, where it begins, and left, how many there are.  Whole ones get a loop of their own. */
#define CHANNELS(n, c, left, ...)                                                                \
    do {                                                                                         \
        int64_t c = 0;                                                                           \
        for (const int64_t left = LANES; c + LANES <= (n); c += LANES) __VA_ARGS__               \
        for (const int64_t left = (n) - c; c < (n); c += LANES) __VA_ARGS__                      \
    } while (0)
#define SQUARE(side, i, j)            \
    for (int i = 0; i < (side); i++) \
        for (int j = 0; j < (side); j++)

/* Where the pixels of a square are that begins `before` pixels above and left of a tile; `outside` serves for those beyond the image. */
INLINE void places(const work *w, int64_t tile, const stored *image, int64_t channels, int side, int before, real *outside, stored **p) {
    const int64_t H = w->a->height, W = w->a->width, of_image = w->down * w->across, here = tile % of_image;
    const int64_t top = here / w->across * TILE - before, left = here % w->across * TILE - before;
    const int64_t corner = ((tile / of_image * H + top) * W + left) * channels;
    SQUARE(side, i, j) {
        const int inside = (uint64_t)(top + i) < (uint64_t)H && (uint64_t)(left + j) < (uint64_t)W;
        p[i * side + j] = inside ? (stored *)image + corner + (i * W + j) * channels : (stored *)outside;
    }
}

/* v = B'd B of one tile.  Channel c of a point goes to v + point * step + c, or in strips to v + point * step + c / STRIP * strip +
   c % STRIP; there the second tile of a pair comes beside the first. */
INLINE void read_tile(const work *w, int64_t tile, real *v, int64_t step, int64_t strip, int64_t second) {
    stored *p[POINTS];
    places(w, tile, w->a->x, w->a->in, AROUND, 1, w->zeros, p);
    CHANNELS(w->a->in, c, left, {
        vec d[AROUND][AROUND];
        SQUARE(AROUND, i, j) d[i][j] = load_stored_up_to(p[i * AROUND + j] + c, left);
        BOTH(to_points, AROUND, AROUND, d, d);
        real *const to = v + (strip ? c / STRIP * strip + c % STRIP : 0);
        SQUARE(AROUND, i, j) keep(to + (i * AROUND + j) * step, d[i][j], strip ? -1 : c, second);
    });
}

/* A dy A' of one tile, in strips. */
INLINE void read_gradient(const work *w, int64_t tile, real *m, int64_t step, int64_t strip, int64_t second) {
    stored *p[TILE * TILE];
    places(w, tile, w->a->dy, w->a->out, TILE, 0, w->zeros, p);
    CHANNELS(w->a->out, k, left, {
        vec d[TILE][TILE], made[AROUND][AROUND];
        SQUARE(TILE, i, j) d[i][j] = load_stored_up_to(p[i * TILE + j] + k, left);
        BOTH(gradient_to_points, TILE, AROUND, d, made);
        real *const to = m + k / STRIP * strip + k % STRIP;
        SQUARE(AROUND, i, j) keep(to + (i * AROUND + j) * step, made[i][j], -1, second);
    });
    if (w->Kp - w->a->out >= LANES) /* the last strip is half empty */
        for (int f = 0; f < POINTS; f++) store(m + f * step + (w->Kp / STRIP - 1) * strip + LANES, (vec){0});
}

/* y = A'm A + bias + other of one tile, with `relu` cut at 0; what lies beyond the image goes nowhere. */
INLINE void write_tile(const work *w, int64_t tile, const real *m, int64_t step, real *nowhere) {
    stored *p[TILE * TILE], *added[TILE * TILE];
    const int64_t sum = w->a->other != NULL, relu = w->a->relu;
    places(w, tile, w->a->y, w->a->out, TILE, 0, nowhere, p);
    if (sum) places(w, tile, w->a->other, w->a->out, TILE, 0, nowhere, added);
    CHANNELS(w->a->out, k, left, {
        vec d[AROUND][AROUND], made[TILE][TILE];
        const vec bias = w->a->bias ? load_up_to(w->a->bias + k, left) : (vec){0};
        SQUARE(AROUND, i, j) d[i][j] = load(m + (i * AROUND + j) * step + k);
        BOTH(from_points, AROUND, TILE, d, made);
        SQUARE(TILE, i, j) {
            vec y = made[i][j] + bias;
            if (sum) y += load_stored_up_to(added[i * TILE + j] + k, left);
            if (relu) y = choose(y < 0, (vec){0}, y); /* not-a-numbers go through */
            store_stored_up_to(p[i * TILE + j] + k, y, left);
        }
    });
}

/* ---- windows ---- */

/* u = G w G' of LANES windows written side by side, in channel c. */
STAGE read_windows(const work *w, int64_t c, int64_t k) {
    const arguments *const a = w->a;
    vec window[3][3], u[AROUND][AROUND];
    SQUARE(3, i, j) {
        const real *const from = a->weight + c * a->of_in + i * a->of_row + j * a->of_column;
        for (int l = 0; l < LANES; l++) window[i][j][l] = k + l < a->out ? from[(k + l) * a->of_out] : 0;
    }
    BOTH(window_to_points, 3, AROUND, window, u);
    const int64_t rows = paired(a->in);
    real *const to = w->u + (k / STRIP * rows + (PAIRS ? c / 2 : c)) * STRIP + k % STRIP;
    SQUARE(AROUND, i, j) keep(to + (i * AROUND + j) * rows * w->Kp, u[i][j], -1, c % 2);
}

STAGE write_windows(const work *w, int64_t c, int64_t k) {
    const arguments *const a = w->a;
    vec u[AROUND][AROUND], window[3][3];
    SQUARE(AROUND, i, j) {
        const real *const from = w->u + ((i * AROUND + j) * a->in + c) * w->Kp + k;
        u[i][j] = load(from);
        for (int64_t part = 1; part < w->parts; part++) u[i][j] += load(from + part * POINTS * a->in * w->Kp);
    }
    BOTH(window_from_points, AROUND, 3, u, window);
    SQUARE(3, i, j) {
        real *const to = a->dweight + c * a->of_in + i * a->of_row + j * a->of_column;
        for (int l = 0; l < LANES && k + l < a->out; l++) to[(k + l) * a->of_out] = window[i][j][l];
    }
}

/* ---- products ---- */

/* x[i] += sum_s a(i, s) b(s), as `tile_product` has it; of pairs two products each. */
INLINE void point_product(int m, tile x, const real *a, int64_t ar, int64_t as, const real *b, int64_t n) {
#if PAIRS
    for (int64_t s = 0; s < n; s++) {
        const vec left = load(b + s * STRIP), right = load(b + s * STRIP + LANES);
        EACH(i, m) {
            const vec f = (vec)((wvec){0} + *(const whole_anywhere *)(a + i * ar + s * as));
            x[i][0] = sum_pairs(x[i][0], f, left);
            x[i][1] = sum_pairs(x[i][1], f, right);
        }
    }
#else
    tile_product(m, x, a, ar, as, b, STRIP, n);
#endif
}

/* to [n][Kp] = from [n][Cp] u */
INLINE void product_rows(int m, real *to, int64_t to_step, const real *from, int64_t from_step, const real *u, int64_t C) {
    tile x;
    tile_zero(m, x);
    point_product(m, x, from, from_step, 1, u, C);
    tile_store(m, x, to, to_step);
}

STAGE product(const work *w, real *to, const real *from, const real *u, int64_t n) {
    const int64_t C = paired(w->a->in);
    for (int64_t k = 0; k < w->Kp; k += STRIP, u += C * STRIP) {
        int64_t t = 0;
        for (; t + 6 <= n; t += 6) product_rows(6, to + t * w->Kp + k, w->Kp, from + t * w->Cp, w->Cp, u, C);
        for (; t + 2 <= n; t += 2) product_rows(2, to + t * w->Kp + k, w->Kp, from + t * w->Cp, w->Cp, u, C);
        for (; t < n; t++) product_rows(1, to + t * w->Kp + k, w->Kp, from + t * w->Cp, w->Cp, u, C);
    }
}

/* to [C][Kp] += v' m, over n tiles. */
INLINE void gather_rows(int rows, real *to, int64_t to_step, const real *v, const real *m, int64_t n, int fresh) {
    tile x;
    if (fresh)
        tile_zero(rows, x);
    else
        tile_load(rows, x, to, to_step);
    point_product(rows, x, v, 1, STRIP, m, n);
    tile_store(rows, x, to, to_step);
}

STAGE gather(const work *w, real *to, const real *v, const real *m, int64_t n, int fresh) {
    const int64_t C = w->a->in;
    for (int64_t k = 0; k < w->Kp; k += STRIP, m += w->chunk * STRIP)
        for (int64_t c = 0; c < C; c += 4) {
            const real *const from = v + c / STRIP * w->chunk * STRIP + c % STRIP;
            switch (least(4, C - c)) {
                case 4: gather_rows(4, to + c * w->Kp + k, w->Kp, from, m, n, fresh); break;
                case 3: gather_rows(3, to + c * w->Kp + k, w->Kp, from, m, n, fresh); break;
                case 2: gather_rows(2, to + c * w->Kp + k, w->Kp, from, m, n, fresh); break;
                default: gather_rows(1, to + c * w->Kp + k, w->Kp, from, m, n, fresh);
            }
        }
}

/* ---- what Python calls ---- */

/* BLOCK tiles from images to images. */
STAGE forward_block(const work *w, int64_t first, real *v, int64_t v_step, real *m, int64_t m_step, real *nowhere) {
    const int64_t n = least(BLOCK, w->tiles - first), C = paired(w->a->in);
    for (int64_t t = 0; t < n; t++) read_tile(w, first + t, v + t * w->Cp, v_step, 0, 0);
    for (int f = 0; f < POINTS; f++) product(w, m + f * m_step, v + f * v_step, w->u + f * C * w->Kp, n);
    for (int64_t t = 0; t < n; t++) write_tile(w, first + t, m + t * w->Kp, m_step, nowhere);
}

STAGE gradient_tile(const work *w, int64_t tile, int64_t t, real *v, int64_t v_step, real *m, int64_t m_step) {
    const int64_t row = PAIRS ? t / 2 : t;
    read_tile(w, tile, v + row * STRIP, v_step, w->chunk * STRIP, t % 2);
    read_gradient(w, tile, m + row * STRIP, m_step, w->chunk * STRIP, t % 2);
}
INLINE void gradient_point(const work *w, int f, real *u, const real *v, int64_t v_step, const real *m, int64_t m_step, int64_t n, int fresh) {
    gather(w, u + f * w->a->in * w->Kp, v + f * v_step, m + f * m_step, paired(n), fresh);
}

static work begin(const arguments *a) {
    const int64_t across = (a->width + TILE - 1) / TILE, down = (a->height + TILE - 1) / TILE;
    return (work){.a = a, .across = across, .down = down, .tiles = a->images * across * down,
                  .Cp = paired((a->in + LANES - 1) / LANES * LANES), .Kp = whole_strips(a->out)};
}

static void all_windows(const work *w) {
#pragma omp for
    for (int64_t first = 0; first < w->a->in; first += 2) /* two, which may be a pair */
        for (int64_t c = first; c < least(first + 2, w->a->in); c++)
            for (int64_t k = 0; k < w->Kp; k += LANES) read_windows(w, c, k);
}

int EXPORT(convolve_windows)(const arguments *a) {
    work made = begin(a), *const w = &made;
    w->u = a->u;
#pragma omp parallel num_threads(a->threads)
    all_windows(w);
    return 0;
}

int EXPORT(convolve_forward)(const arguments *a) {
    work made = begin(a), *const w = &made;
    const int64_t v_step = BLOCK * w->Cp + LINE, m_step = BLOCK * w->Kp + LINE, each = POINTS * (v_step + m_step) + w->Kp;
    const int64_t windows = a->u ? 0 : POINTS * paired(a->in) * w->Kp;
    real *const space = reals((size_t)(windows + w->Cp + a->threads * each));
    if (!space) return 1;
    w->u = a->u ? a->u : space, w->zeros = space + windows;
    memset(w->zeros, 0, (size_t)w->Cp * sizeof(real));
#pragma omp parallel num_threads(a->threads)
    {
        real *const v = w->zeros + w->Cp + worker() * each, *const m = v + POINTS * v_step, *const nowhere = m + POINTS * m_step;
        if (!a->u) all_windows(w);
#pragma omp for
        for (int64_t first = 0; first < w->tiles; first += BLOCK) forward_block(w, first, v, v_step, m, m_step, nowhere);
    }
    free(space);
    return 0;
}

int EXPORT(convolve_gradient)(const arguments *a) {
    work made = begin(a), *const w = &made;
    const int64_t C = a->in, Cp = whole_strips(C), outside = Cp > w->Kp ? Cp : w->Kp, sums = POINTS * C * w->Kp;
    const int shared = sums > LARGEST;
    for (w->parts = shared ? 1 : 2; !shared && w->parts < PARTS && w->parts * CHUNK * TILES < w->tiles;) w->parts *= 2;
    w->chunk = shared ? SHARED / (POINTS * (Cp + w->Kp)) + 1 : CHUNK;
    const int64_t v_step = w->chunk * Cp + LINE, m_step = w->chunk * w->Kp + LINE, each = POINTS * (v_step + m_step);
    const int64_t threads = shared ? a->threads : least(a->threads, w->parts);
    real *const space = reals((size_t)(w->parts * sums + outside + (shared ? 1 : threads) * each));
    if (!space) return 1;
    w->u = space, w->zeros = space + w->parts * sums;
    memset(w->zeros, 0, (size_t)outside * sizeof(real));
#pragma omp parallel num_threads(threads)
    {
        real *const v = w->zeros + outside + (shared ? 0 : worker() * each), *const m = v + POINTS * v_step;
        if (shared) {
            for (int64_t first = 0; first < w->tiles; first += w->chunk * TILES) {
                const int64_t n = least(w->chunk * TILES, w->tiles - first);
#pragma omp for
                for (int64_t pair = 0; pair < n; pair += 2)
                    for (int64_t t = pair; t < least(pair + 2, n); t++) gradient_tile(w, first + t, t, v, v_step, m, m_step);
#pragma omp for
                for (int f = 0; f < POINTS; f++) gradient_point(w, f, w->u, v, v_step, m, m_step, n, first == 0);
            }
        } else {
#pragma omp for
            for (int64_t part = 0; part < w->parts; part++) {
                const int64_t begin = w->tiles * part / w->parts, end = w->tiles * (part + 1) / w->parts;
                real *const u = w->u + part * sums;
                if (begin == end) memset(u, 0, (size_t)sums * sizeof(real));
                for (int64_t first = begin; first < end; first += CHUNK * TILES) {
                    const int64_t n = least(CHUNK * TILES, end - first);
                    for (int64_t t = 0; t < n; t++) gradient_tile(w, first + t, t, v, v_step, m, m_step);
                    for (int f = 0; f < POINTS; f++) gradient_point(w, f, u, v, v_step, m, m_step, n, first == begin);
                }
            }
        }
#pragma omp for
        for (int64_t c = 0; c < C; c++)
            for (int64_t k = 0; k < w->Kp; k += LANES) write_windows(w, c, k);
    }
    free(space);
    return 0;
}
