/* Wall clocks that are set, and that go too fast: loaded with LD_PRELOAD into the processes under test.
 *
 * BAD_CLOCK names a file of entries of five 64-bit numbers that the test holds mapped as well:
 *   [0] whose: a process; 0: of all that have no entry of their own    [1] nanoseconds ahead
 *   [2] parts per billion too fast, from [3] on, a true time in nanoseconds
 *   [4] how often it was read
 * Only the wall clock is wrong: the monotonic one never jumps on a real machine either. Waits until
 * a wall-clock time are told to the kernel in its own, true time.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

enum { ENTRIES = 16 };
#define SECOND 1000000000LL
/* Seconds that only a wall clock shows: less is of another clock, more is "never". */
#define WALL_MIN 1000000000LL
#define WALL_MAX 4000000000LL

struct entry {
    int64_t whose, ahead_ns, ppb, since_ns;
    uint64_t asked;
};

static struct entry *entries;
static pid_t me;

static void know_me(void)
{
    me = getpid();
}

__attribute__((constructor)) static void begin(void)
{
    const char *path = getenv("BAD_CLOCK");
    int file = path ? open(path, O_RDWR | O_CLOEXEC) : -1;

    if (file < 0)
        return;
    know_me();
    pthread_atfork(NULL, NULL, know_me);
    void *shared =
        mmap(NULL, ENTRIES * sizeof *entries, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    close(file);
    if (shared != MAP_FAILED)
        entries = shared;
}

static int64_t get(int64_t *number)
{
    return __atomic_load_n(number, __ATOMIC_ACQUIRE);
}

/* How far this process's clock is ahead at a true time. */
static int64_t ahead_ns(int64_t true_ns, int asked)
{
    struct entry *mine = entries;
    int64_t ppb;

    if (!entries)
        return 0;
    for (int n = 1; n < ENTRIES; n++)
        if (get(&entries[n].whose) == me)
            mine = &entries[n];
    if (asked)
        __atomic_add_fetch(&mine->asked, 1, __ATOMIC_RELAXED);
    ppb = get(&mine->ppb);
    return get(&mine->ahead_ns) + (ppb ? (true_ns - get(&mine->since_ns)) / 1000 * ppb / 1000000 : 0);
}

static int read_truly(clockid_t clock, struct timespec *now)
{
    static int (*real)(clockid_t, struct timespec *);

    if (!real)
        real = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
    return real(clock, now);
}

static int64_t true_ns(void)
{
    struct timespec now;

    read_truly(CLOCK_REALTIME, &now);
    return now.tv_sec * SECOND + now.tv_nsec;
}

static int is_wall(clockid_t clock)
{
    return clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE;
}

int clock_gettime(clockid_t clock, struct timespec *now)
{
    int done = read_truly(clock, now);

    if (done == 0 && is_wall(clock) && entries) {
        int64_t ns = now->tv_sec * SECOND + now->tv_nsec;

        ns += ahead_ns(ns, 1);
        now->tv_sec = ns / SECOND;
        now->tv_nsec = ns % SECOND;
    }
    return done;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone)
{
    struct timespec precise;

    (void)zone;
    clock_gettime(CLOCK_REALTIME, &precise);
    now->tv_sec = precise.tv_sec;
    now->tv_usec = precise.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *into)
{
    struct timespec precise;

    clock_gettime(CLOCK_REALTIME, &precise);
    if (into)
        *into = precise.tv_sec;
    return precise.tv_sec;
}

/* A wall-clock time of this process's as the kernel has it. */
static const struct timespec *in_truth(const struct timespec *until, struct timespec *room)
{
    if (!until || !entries || until->tv_sec < WALL_MIN || until->tv_sec > WALL_MAX)
        return until;
    int64_t ns = until->tv_sec * SECOND + until->tv_nsec - ahead_ns(true_ns(), 0);
    room->tv_sec = ns / SECOND;
    room->tv_nsec = ns % SECOND;
    return room;
}

#if defined(__x86_64__)
#define CONDITIONS "GLIBC_2.3.2" /* before, conditions were another thing of the same name */
#else
#define CONDITIONS "GLIBC_2.17"
#endif

int pthread_cond_timedwait(pthread_cond_t *restrict condition, pthread_mutex_t *restrict mutex,
                           const struct timespec *restrict until)
{
    static int (*real)(pthread_cond_t *, pthread_mutex_t *, const struct timespec *);
    struct timespec room;

    if (!real)
        real = (int (*)(pthread_cond_t *, pthread_mutex_t *, const struct timespec *))dlvsym(
            RTLD_NEXT, "pthread_cond_timedwait", CONDITIONS);
    return real(condition, mutex, in_truth(until, &room));
}

/* Locks of libraries wait by a call of their own. */
long syscall(long number, ...)
{
    static long (*real)(long, ...);
    struct timespec room;
    va_list given;
    long a[6];

    va_start(given, number);
    for (int n = 0; n < 6; n++)
        a[n] = va_arg(given, long);
    va_end(given);
    if (!real)
        real = (long (*)(long, ...))dlsym(RTLD_NEXT, "syscall");
    if (number == SYS_futex && (a[1] & FUTEX_CLOCK_REALTIME))
        a[3] = (long)in_truth((const struct timespec *)a[3], &room);
    return real(number, a[0], a[1], a[2], a[3], a[4], a[5]);
}
