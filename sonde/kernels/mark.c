/* The mark of the sources this library was made from; the build gives it, the loader compares it with the sources it
   finds. */
#include "_real.h"

const char EXPORT(mark)[] = MARK;
