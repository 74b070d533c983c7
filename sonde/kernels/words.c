/* Word vectors: skip-gram and continuous bag of words by stochastic gradients, and GloVe with its co-occurrence counts.

   A text is a row of word ids; an id below 0 ends a sentence.  It is worked on in pieces, each with random numbers and a
   rate of its own, so that what is drawn does not depend on the threads.  Threads share the vectors without locks: now
   and then one overwrites what another added, which the method bears well (Hogwild).  One thread gives the same bits
   every time.

   Rows of vectors are padded with zeros to whole cache lines, `stride` reals each. */
#include "_real.h"

#include <stdbool.h>

enum { TILE = 6, FLUSH = 8 };

/* ---------------------------------------------------------------- random numbers ---------------------------------- */

/* splitmix64 */
INLINE uint64_t draw(uint64_t *state) {
    uint64_t z = *state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

/* A number below n from 32 random bits. */
INLINE uint32_t below(uint32_t bits, int64_t n) { return (uint32_t)((uint64_t)bits * (uint64_t)n >> 32); }

/* ---------------------------------------------------------------- word2vec ---------------------------------------- */

typedef struct {
    const int32_t *tokens;  /* word ids */
    const uint32_t *keep;   /* a word stays where 32 random bits are not above this */
    const uint32_t *share;  /* noise words as an alias table: column i is word i where 32 random bits are below share[i], */
    const int32_t *alias;   /* else alias[i]; both NULL with a tree */
    const int64_t *first;   /* the tree: word w has the inner nodes node[first[w]] to node[first[w + 1] - 1] on its path, */
    const int32_t *node;    /* and goes left at those whose label is 1; NULL with noise words */
    const uint8_t *label;
    real *in, *out;         /* vectors of words, and of words or nodes to predict: rows of `stride` */
    double *loss;           /* what is counted up: sum of negative log-likelihoods, */
    int64_t *pairs, *kept;  /* predictions made, words not thinned out */
    int64_t length, words, stride, window, bag, negatives, most; /* most: rows a prediction can have */
    int64_t piece, begin, end, threads;                          /* words in a piece; first piece and the one after the last */
    uint64_t seed;
    double rate, fall; /* the rate of piece p is rate - fall p */
} arguments;

/* What a word is told from: rows of `out` with a sign, +1 where the answer is yes. */
typedef struct {
    int n;
    real **row, *sign;
} question;

typedef struct {
    int32_t *sentence;
    question now, next;
    real **context;
    real *score;  /* (rows of the question, pairs padded to vectors): logits, then rate times error */
    real *change; /* (pairs, stride) what is to be added to the inputs */
    real *mean;
    double product, loss; /* the loss so far is `loss` + log `product` */
    int64_t pairs, kept;
} scratch;

typedef double dvec __attribute__((vector_size(LANES * sizeof(double))));

INLINE void prefetch(const real *row, int64_t stride) {
    for (int64_t d = 0; d < stride; d += 64 / (int64_t)sizeof(real)) __builtin_prefetch(row + d, 1);
}

/* The rows that tell a word: itself and drawn noise words, or the nodes of its path. */
INLINE void ask(const arguments *a, int32_t word, question *q, uint64_t *random) {
    q->n = 0;
    if (a->node) {
        for (int64_t at = a->first[word]; at < a->first[word + 1]; at++) {
            q->sign[q->n] = a->label[at] ? 1 : -1;
            q->row[q->n++] = a->out + a->node[at] * a->stride;
        }
    } else {
        q->sign[q->n] = 1;
        q->row[q->n++] = a->out + word * a->stride;
        for (int64_t k = 0; k < a->negatives; k++) {
            const uint64_t bits = draw(random);
            const uint32_t column = below((uint32_t)(bits >> 32), a->words);
            const int32_t noise = (uint32_t)bits < a->share[column] ? (int32_t)column : a->alias[column];
            if (noise == word) continue; /* as word2vec has it: one noise word less */
            q->sign[q->n] = -1;
            q->row[q->n++] = a->out + noise * a->stride;
        }
    }
    for (int j = 0; j < q->n; j++) prefetch(q->row[j], a->stride);
}

/* score[j, i] = in_i . out_j for N rows. */
INLINE void scores(const int N, real *const *in, int m, real *const *out, real *score, int padded, int64_t stride) {
    for (int i = 0; i < m; i++) {
        vec sum[TILE];
        for (int j = 0; j < N; j++) sum[j] = (vec){0};
        for (int64_t d = 0; d < stride; d += LANES) {
            const vec x = load(in[i] + d);
            for (int j = 0; j < N; j++) sum[j] += x * load(out[j] + d);
        }
        for (int j = 0; j < N; j++) score[j * padded + i] = total(sum[j]);
    }
}

/* out_j += sum_i score[j, i] in_i, and change_i (+)= sum_j score[j, i] out_j, both from the old values. */
INLINE void updates(const int N, real *const *in, int m, real *const *out, const real *score, int padded, int64_t stride,
                    real *change, bool begin) {
    for (int64_t d = 0; d < stride; d += LANES) {
        vec old[TILE], sum[TILE];
        for (int j = 0; j < N; j++) old[j] = load(out[j] + d), sum[j] = (vec){0};
        for (int i = 0; i < m; i++) {
            const vec x = load(in[i] + d);
            vec e = begin ? (vec){0} : load(change + i * stride + d);
            for (int j = 0; j < N; j++) {
                const vec g = broadcast(score[j * padded + i]);
                e += g * old[j];
                sum[j] += g * x;
            }
            store(change + i * stride + d, e);
        }
        /* Loaded again: two of the rows may be the same one. */
        for (int j = 0; j < N; j++) store(out[j] + d, load(out[j] + d) + sum[j]);
    }
}

#define FOR_TILES(n, CALL)                            \
    for (int j = 0; j < (n); j += TILE) switch ((n) - j) { \
            case 1: CALL(1); break;                   \
            case 2: CALL(2); break;                   \
            case 3: CALL(3); break;                   \
            case 4: CALL(4); break;                   \
            case 5: CALL(5); break;                   \
            default: CALL(TILE);                      \
        }

/* m inputs answer the rows of a question; the rows learn, and `change` is what the inputs are to learn. */
static void answer(const arguments *a, scratch *s, real *const *in, int m, const question *q, real rate) {
    const int padded = (m + LANES - 1) / LANES * LANES;
    const int64_t stride = a->stride;
#define SCORES(N) scores(N, in, m, q->row + j, s->score + j * padded, padded, stride)
    FOR_TILES(q->n, SCORES)
    /* -log sigmoid(sign score) = log(1 + t) with t = exp(-sign score), and the error is sign t / (1 + t). */
    wvec lane;
    for (int l = 0; l < LANES; l++) lane[l] = l;
    for (int i = 0; i < padded; i += LANES) {
        dvec product = (dvec){0} + 1.0;
        for (int j = 0; j < q->n; j++) {
            real *p = s->score + j * padded + i;
            /* In this order of arguments not-a-number stays one, and shows in the loss. */
            const vec z = vmax(broadcast(-30), vmin(broadcast(30), load(p) * -q->sign[j]));
            const vec t = choose(lane < (whole)(m - i), vexp_near(z), (vec){0});
            store(p, broadcast(rate * q->sign[j]) * t / (t + 1));
            product *= __builtin_convertvector(t + 1, dvec);
            if (j % FLUSH == FLUSH - 1 || j == q->n - 1) {
                for (int l = 0; l < LANES && i + l < m; l++) {
                    s->product *= product[l];
                    if (!(s->product < 1e150)) s->loss += log(s->product), s->product = 1;
                }
                product = (dvec){0} + 1.0;
            }
        }
    }
#define UPDATES(N) updates(N, in, m, q->row + j, s->score + j * padded, padded, stride, s->change, j == 0)
    FOR_TILES(q->n, UPDATES)
    s->pairs += m;
}

INLINE void add(real *to, const real *change, int64_t stride) {
    for (int64_t d = 0; d < stride; d += LANES) store(to + d, load(to + d) + load(change + d));
}

static void sentence(const arguments *a, scratch *s, int n, real rate, uint64_t *random) {
    const int64_t stride = a->stride;
    if (n < 2) return;
    ask(a, s->sentence[0], &s->now, random);
    for (int i = 0; i < n; i++) {
        const int reach = 1 + (int)below((uint32_t)draw(random), a->window);
        const int low = i - reach < 0 ? 0 : i - reach, high = i + reach >= n ? n - 1 : i + reach;
        /* What the next word needs is on its way while this one is worked on. */
        if (i + 1 < n) ask(a, s->sentence[i + 1], &s->next, random);
        if (i + 1 + a->window < n) prefetch(a->in + s->sentence[i + 1 + a->window] * stride, stride);
        int m = 0;
        for (int c = low; c <= high; c++)
            if (c != i) s->context[m++] = a->in + s->sentence[c] * stride;
        if (a->bag) {
            const vec share = broadcast((real)1 / m);
            for (int64_t d = 0; d < stride; d += LANES) {
                vec sum = {0};
                for (int c = 0; c < m; c++) sum += load(s->context[c] + d);
                store(s->mean + d, sum * share);
            }
            answer(a, s, &s->mean, 1, &s->now, rate);
            for (int c = 0; c < m; c++) add(s->context[c], s->change, stride);
        } else {
            answer(a, s, s->context, m, &s->now, rate);
            for (int c = 0; c < m; c++) add(s->context[c], s->change + c * stride, stride);
        }
        const question done = s->now;
        s->now = s->next;
        s->next = done;
    }
}

static void piece(const arguments *a, scratch *s, int64_t p) {
    uint64_t random = a->seed ^ (uint64_t)p * 0xd1342543de82ef95u;
    random = draw(&random);
    const real rate = (real)(a->rate - a->fall * p);
    const int64_t end = (p + 1) * a->piece < a->length ? (p + 1) * a->piece : a->length;
    for (int64_t at = p * a->piece; at < end; at++) {
        int n = 0;
        for (; at < end && a->tokens[at] >= 0; at++) {
            const int32_t word = a->tokens[at];
            if (a->keep[word] == UINT32_MAX || (uint32_t)draw(&random) <= a->keep[word]) s->sentence[n++] = word;
        }
        s->kept += n;
        sentence(a, s, n, rate, &random);
    }
}

static bool make(const arguments *a, scratch *s) {
    const size_t most = (size_t)a->most, inputs = 2 * (size_t)a->window, padded = inputs + LANES;
    *s = (scratch){.product = 1};
    s->sentence = malloc((size_t)a->piece * sizeof(int32_t));
    s->context = malloc(inputs * sizeof(real *));
    s->now.row = malloc(most * sizeof(real *)), s->next.row = malloc(most * sizeof(real *));
    s->now.sign = reals(most), s->next.sign = reals(most);
    s->score = reals(most * padded);
    s->change = reals(inputs * (size_t)a->stride);
    s->mean = reals((size_t)a->stride);
    return s->sentence && s->context && s->now.row && s->next.row && s->now.sign && s->next.sign && s->score && s->change && s->mean;
}

static void release(scratch *s) {
    free(s->sentence), free(s->context), free(s->now.row), free(s->next.row), free(s->now.sign), free(s->next.sign);
    free(s->score), free(s->change), free(s->mean);
}

/* One pass over pieces begin to end - 1. */
int EXPORT(words_train)(const arguments *a) {
    int failed = 0;
    double loss = 0;
    int64_t pairs = 0, kept = 0;
#pragma omp parallel num_threads((int)a->threads) reduction(+ : loss, pairs, kept) reduction(| : failed)
    {
        scratch s;
        failed = !make(a, &s);
#pragma omp for schedule(dynamic, 1)
        for (int64_t p = a->begin; p < a->end; p++)
            if (!failed) piece(a, &s, p);
        loss += s.loss + log(s.product);
        pairs += s.pairs;
        kept += s.kept;
        release(&s);
    }
    *a->loss += loss;
    *a->pairs += pairs;
    *a->kept += kept;
    return failed;
}

/* ---------------------------------------------------------------- counting neighbors ----------------------------- */

typedef struct {
    const int32_t *tokens;
    uint64_t *key;    /* a table of `capacity`, a power of two: 1 + smaller id * words + larger id, or 0 where it is free */
    double *weight;   /* sum of 1 / distance over the places where the two stand together */
    int64_t *at;      /* the word to begin with; after the call the word to go on with */
    int64_t *used;    /* entries of the table in use */
    int64_t length, words, window, capacity, limit;
} counting;

/* Counts neighbors until the text ends or more than `limit` entries are in use. */
int EXPORT(words_count)(const counting *c) {
    const int shift = 64 - __builtin_ctzll((uint64_t)c->capacity);
    int64_t at = *c->at, used = *c->used;
    for (; at < c->length && used <= c->limit; at++) {
        const int32_t word = c->tokens[at];
        if (word < 0) continue;
        for (int64_t d = 1; d <= c->window && d <= at && c->tokens[at - d] >= 0; d++) {
            const int32_t other = c->tokens[at - d];
            const uint64_t low = (uint64_t)(word < other ? word : other), high = (uint64_t)(word < other ? other : word);
            const uint64_t key = 1 + low * (uint64_t)c->words + high;
            uint64_t place = key * 0x9e3779b97f4a7c15u >> shift;
            while (c->key[place] && c->key[place] != key) place = (place + 1) & (uint64_t)(c->capacity - 1);
            if (!c->key[place]) c->key[place] = key, used++;
            c->weight[place] += 1.0 / (double)d;
        }
    }
    *c->at = at;
    *c->used = used;
    return 0;
}

/* ---------------------------------------------------------------- GloVe ------------------------------------------- */

typedef struct {
    const int32_t *row, *column; /* entries of the symmetric matrix of counts, each pair of words once */
    const double *count;
    real *in, *out, *in_squares, *out_squares; /* vectors, and sums of the squares of their gradients */
    real *in_bias, *out_bias, *in_bias_squares, *out_bias_squares;
    double *loss;
    int64_t entries, stride, threads;
    double rate, most, power;
} fitting;

/* One step of AdaGrad on weight(x) (w.u + b + c - log x)^2 / 2; returns twice that. */
INLINE double fit(const fitting *f, int64_t i, int64_t j, double count) {
    const int64_t stride = f->stride;
    real *restrict w = f->in + i * stride, *restrict u = f->out + j * stride;
    real *restrict ws = f->in_squares + i * stride, *restrict us = f->out_squares + j * stride;
    vec sum = {0};
    for (int64_t d = 0; d < stride; d += LANES) sum += load(w + d) * load(u + d);
    const real gap = total(sum) + f->in_bias[i] + f->out_bias[j] - (real)log(count);
    const real g = (real)(count < f->most ? pow(count / f->most, f->power) : 1.0) * gap, rate = (real)f->rate;
#pragma GCC ivdep
    for (int64_t d = 0; d < stride; d++) {
        const real gw = g * u[d], gu = g * w[d];
        w[d] -= rate * gw / (real)sqrt(ws[d]);
        u[d] -= rate * gu / (real)sqrt(us[d]);
        ws[d] += gw * gw;
        us[d] += gu * gu;
    }
    f->in_bias[i] -= rate * g / (real)sqrt(f->in_bias_squares[i]);
    f->out_bias[j] -= rate * g / (real)sqrt(f->out_bias_squares[j]);
    f->in_bias_squares[i] += g * g;
    f->out_bias_squares[j] += g * g;
    return (double)g * gap;
}

/* One pass over the entries, each in both directions. */
int EXPORT(words_glove)(const fitting *f) {
    double loss = 0;
#pragma omp parallel for num_threads((int)f->threads) schedule(static) reduction(+ : loss)
    for (int64_t e = 0; e < f->entries; e++) {
        loss += fit(f, f->row[e], f->column[e], f->count[e]);
        if (f->row[e] != f->column[e]) loss += fit(f, f->column[e], f->row[e], f->count[e]);
    }
    *f->loss += loss;
    return 0;
}
