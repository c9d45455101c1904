/* Prints how fast this processor's time stamp counter counts, in kHz. */
#include <stdio.h>
#include <time.h>
#include <x86intrin.h>

struct moment {
  double ns;
  unsigned long long ticks;
};

/* Reads both clocks at nearly the same time: the shortest of several tries counts, since no other process ran in it. */
static struct moment look(void) {
  struct moment best = {0, 0};
  double shortest = 1e18;
  int i;
  for (i = 0; i < 20; i++) {
    struct timespec before, after;
    unsigned long long ticks;
    double took;
    clock_gettime(CLOCK_MONOTONIC, &before);
    ticks = __rdtsc();
    clock_gettime(CLOCK_MONOTONIC, &after);
    took = (double)(after.tv_sec - before.tv_sec) * 1e9 + (double)(after.tv_nsec - before.tv_nsec);
    if (took >= shortest) continue;
    shortest = took;
    best.ns = (double)before.tv_sec * 1e9 + (double)before.tv_nsec + took / 2;
    best.ticks = ticks;
  }
  return best;
}

int main(void) {
  struct timespec pause = {0, 50 * 1000 * 1000};
  struct moment from = look(), to;
  nanosleep(&pause, NULL);
  to = look();
  printf("%.0f\n", (double)(to.ticks - from.ticks) / (to.ns - from.ns) * 1e6);
  return 0;
}
