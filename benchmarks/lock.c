/* How long each thread holds the interpreter's lock, in CPU time: preloaded into CPython 3.11 by serial.py.

   take_gil and drop_gil each end with pthread_cond_signal on a condition of their own (Python/ceval_gil.h), and the
   one of take_gil lies at the higher address. Whoever preloads this tells the two addresses apart by counting. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

typedef struct { int64_t thread, held_ns, times, since; } record_t;

enum { MOST = 4096 };
static record_t records[MOST];
static int n_records;
static __thread record_t *mine;
static pthread_cond_t *taken, *dropped;

void *seen[64];
int seen_times[64], n_seen;

static int64_t cpu_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return t.tv_sec * 1000000000LL + t.tv_nsec;
}

void lock_watch(void *take, void *drop) { taken = take; dropped = drop; }
record_t *lock_records(void) { return records; }
int lock_count(void) { return n_records < MOST ? n_records : MOST; }

int pthread_cond_signal(pthread_cond_t *condition) {
    static int (*original)(pthread_cond_t *);
    if (!original) original = dlsym(RTLD_NEXT, "pthread_cond_signal");
    if (!taken) {
        int i = 0;
        while (i < n_seen && seen[i] != condition) i++;
        if (i < 64) {
            if (i == n_seen) seen[n_seen++] = condition;
            seen_times[i]++;
        }
    } else if (condition == taken || condition == dropped) {
        if (!mine) {
            mine = &records[__sync_fetch_and_add(&n_records, 1) % MOST];
            mine->thread = syscall(SYS_gettid);
        }
        if (condition == taken) {
            mine->since = cpu_ns();
            mine->times++;
        } else if (mine->since) {
            mine->held_ns += cpu_ns() - mine->since;
            mine->since = 0;
        }
    }
    return original(condition);
}
