#include "_real.h"
int EXPORT(vexp_probe)(real *p) { store(p, vexp(load(p))); return 0; }
