#include <gloo_rs.h>

const char *train_version(void);
const char *train_version(void) { return gloo_rs_version(); }
