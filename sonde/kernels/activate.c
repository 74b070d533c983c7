/* y = f(x), or with a gate y = f(x) up, and its gradient dx = dy up f'(x), dup = dy f(x).

   One pass over memory each way.  The backward pass computes the curve again from x: a second number for each element to
   keep would cost more time than the arithmetic does. */
#include "_curves.h"

typedef struct {
    const stored *x, *up, *dy; /* up NULL: no gate */
    stored *y, *dx, *dup;
    int64_t n, tanh, threads;  /* tanh: the curve is gelu_tanh, else silu */
} arguments;

/* The elements from i on, at most a vector of them; n is how many. */
INLINE vec take(const stored *p, int64_t i, int n) { return n == LANES ? load_stored(p + i) : load_stored_some(p + i, n); }
INLINE void give(stored *p, int64_t i, vec x, int n) {
    if (n == LANES) store_stored(p + i, x);
    else store_stored_some(p + i, x, n);
}

typedef vec (*bend)(vec x, vec *slope);

INLINE void forward_at(const arguments *a, bend f, int64_t i, int n) {
    vec slope;
    const vec y = f(take(a->x, i, n), &slope);
    give(a->y, i, a->up ? y * take(a->up, i, n) : y, n);
}

INLINE void backward_at(const arguments *a, bend f, int64_t i, int n) {
    vec slope;
    const vec y = f(take(a->x, i, n), &slope), dy = take(a->dy, i, n);
    if (a->up) {
        give(a->dx, i, dy * take(a->up, i, n) * slope, n);
        give(a->dup, i, dy * y, n);
    } else {
        give(a->dx, i, dy * slope, n);
    }
}

/* `at` inlined with its curve, for all elements. */
#define EVERYWHERE(at, f)                                                                                       \
    do {                                                                                                        \
        const int64_t vectors = a->n / LANES;                                                                   \
        _Pragma("omp parallel for num_threads((int)a->threads) schedule(static)")                               \
        for (int64_t v = 0; v < vectors; v++) at(a, f, v * LANES, LANES);                                       \
        if (a->n % LANES) at(a, f, vectors * LANES, (int)(a->n % LANES));                                       \
    } while (0)

int EXPORT(activate_forward)(const arguments *a) {
    if (a->tanh) EVERYWHERE(forward_at, gelu_tanh);
    else EVERYWHERE(forward_at, silu);
    return 0;
}

int EXPORT(activate_backward)(const arguments *a) {
    if (a->tanh) EVERYWHERE(backward_at, gelu_tanh);
    else EVERYWHERE(backward_at, silu);
    return 0;
}
