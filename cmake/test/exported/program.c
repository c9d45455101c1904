#include <string.h>
#ifdef GLOO_RS_IS_PUBLIC
#include <gloo_rs.h>
#endif

const char *train_version(void);

int main(void) {
#ifdef GLOO_RS_IS_PUBLIC
  if (strcmp(train_version(), gloo_rs_version()) != 0) return 1;
#endif
  return strlen(train_version()) > 0 ? 0 : 1;
}
