/* Makes every fsync of a process slower, to measure on a fast disk what a slow one would give.
 *
 * Loaded with LD_PRELOAD. SLOW_FSYNC_US: how long each call sleeps before it is made.
 * SLOW_FSYNC_COUNT: a file of eight bytes in which all processes count their calls together, so
 * that it can be told whether a program was slowed at all (a static one is not).
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <time.h>
#include <unistd.h>

static struct timespec delay;
static uint64_t *count;

__attribute__((constructor)) static void begin(void)
{
    const char *text = getenv("SLOW_FSYNC_US");
    const char *path = getenv("SLOW_FSYNC_COUNT");
    long us = text ? strtol(text, NULL, 10) : 0;

    if (us < 0 || us > 1000000)
        us = 0;
    delay.tv_sec = us / 1000000;
    delay.tv_nsec = us % 1000000 * 1000;
    if (path) {
        int file = open(path, O_RDWR | O_CLOEXEC);
        if (file >= 0) {
            void *shared = mmap(NULL, sizeof *count, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
            if (shared != MAP_FAILED)
                count = shared;
            close(file);
        }
    }
}

static void slow(void)
{
    struct timespec left = delay;

    if (count)
        __atomic_add_fetch(count, 1, __ATOMIC_RELAXED);
    while (nanosleep(&left, &left) != 0)
        ;
}

int fsync(int file)
{
    slow();
    return (int)syscall(SYS_fsync, file);
}

int fdatasync(int file)
{
    slow();
    return (int)syscall(SYS_fdatasync, file);
}

int sync_file_range(int file, off64_t offset, off64_t bytes, unsigned int flags)
{
    slow();
    return (int)syscall(SYS_sync_file_range, file, offset, bytes, flags);
}
