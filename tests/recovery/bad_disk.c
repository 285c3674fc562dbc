/* A disk that misbehaves when told to: loaded with LD_PRELOAD into the processes under test.
 *
 * BAD_DISK names a file of four 64-bit numbers that the test holds mapped as well:
 *   [0] how many syncs were asked for      [1] how many of the next ones are to fail with EIO
 *   [2] how many have failed               [3] how many microseconds each takes longer
 * A sync that fails has not been made: what was written may or may not be on the disk.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { ASKED, TO_FAIL, FAILED, DELAY_US, NUMBERS };

static uint64_t *told;

__attribute__((constructor)) static void begin(void)
{
    const char *path = getenv("BAD_DISK");
    int file = path ? open(path, O_RDWR | O_CLOEXEC) : -1;

    if (file < 0)
        return;
    void *shared = mmap(NULL, NUMBERS * sizeof *told, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (shared != MAP_FAILED)
        told = shared;
    close(file);
}

static int sync_with(long call, int file)
{
    if (told) {
        uint64_t us = __atomic_load_n(&told[DELAY_US], __ATOMIC_RELAXED);
        uint64_t left = __atomic_load_n(&told[TO_FAIL], __ATOMIC_RELAXED);
        struct timespec pause = {(time_t)(us / 1000000), (long)(us % 1000000 * 1000)};

        __atomic_add_fetch(&told[ASKED], 1, __ATOMIC_RELAXED);
        while (us && nanosleep(&pause, &pause) != 0)
            ;
        while (left) {
            if (__atomic_compare_exchange_n(&told[TO_FAIL], &left, left - 1, 0, __ATOMIC_RELAXED,
                                            __ATOMIC_RELAXED)) {
                __atomic_add_fetch(&told[FAILED], 1, __ATOMIC_RELAXED);
                errno = EIO;
                return -1;
            }
        }
    }
    return (int)syscall(call, file);
}

int fsync(int file)
{
    return sync_with(SYS_fsync, file);
}

int fdatasync(int file)
{
    return sync_with(SYS_fdatasync, file);
}
