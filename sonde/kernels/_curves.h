/* Curves of neurons, with their slopes.  Each is x times a share between 0 and 1, and slope = share + x share':

       silu        share = 1 / (1 + exp(-x))
       gelu_tanh   share = 1 / (1 + exp(-2u)) = (1 + tanh u) / 2,  u = sqrt(2/pi) (x + 0.044715 x^3) */
#pragma once

#include "_real.h"

INLINE vec sigmoid(vec x) { return 1 / (1 + vexp(-x)); }

INLINE vec silu(vec x, vec *slope) {
    const vec share = sigmoid(x);
    *slope = share + x * share * (1 - share);
    return x * share;
}

INLINE vec gelu_tanh(vec x, vec *slope) {
    const real twice = 1.5957691216057308, cubic = 0.044715; /* 2 sqrt(2/pi) */
    const vec square = x * x, share = sigmoid(x * (square * cubic + 1) * twice);
    *slope = share + x * share * (1 - share) * (square * (3 * cubic) + 1) * twice;
    return x * share;
}
