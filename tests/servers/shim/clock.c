/* A preloaded library (LD_PRELOAD) that shifts a program's real-time clock while the program runs.
 * It adds an offset to the system's time: the microseconds in the file CLOCK_SHIM, a 64-bit number
 * in the machine's byte order. CLOCK_MONOTONIC and the other clocks are not affected. Waits until a
 * time of the real-time clock last as long as the shifted clock says when they begin.
 *
 * It asks the kernel directly. redis-server's allocator reads a clock before the dynamic linker can
 * find the functions that this library replaces, which is where libfaketime hangs. Nothing here
 * allocates. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static volatile int64_t *offset_micros;

__attribute__((constructor)) static void open_offset(void) {
    const char *path = getenv("CLOCK_SHIM");
    int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (file < 0)
        return;
    void *page = mmap(NULL, sizeof(int64_t), PROT_READ, MAP_SHARED, file, 0);
    close(file);
    if (page != MAP_FAILED)
        offset_micros = page;
}

static int is_real_time(clockid_t clock) {
    return clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE;
}

int clock_gettime(clockid_t clock, struct timespec *time) {
    int result = (int)syscall(SYS_clock_gettime, clock, time);
    if (result == 0 && offset_micros && is_real_time(clock)) {
        int64_t micros = *offset_micros;
        time->tv_sec += micros / 1000000;
        time->tv_nsec += micros % 1000000 * 1000;
        if (time->tv_nsec >= 1000000000) {
            time->tv_sec += 1;
            time->tv_nsec -= 1000000000;
        } else if (time->tv_nsec < 0) {
            time->tv_sec -= 1;
            time->tv_nsec += 1000000000;
        }
    }
    return result;
}

int gettimeofday(struct timeval *restrict time, void *restrict zone) {
    struct timespec now;
    (void)zone;
    int result = clock_gettime(CLOCK_REALTIME, &now);
    if (result == 0 && time) {
        time->tv_sec = now.tv_sec;
        time->tv_usec = now.tv_nsec / 1000;
    }
    return result;
}

time_t time(time_t *seconds) {
    struct timespec now = {0, 0};
    clock_gettime(CLOCK_REALTIME, &now);
    if (seconds)
        *seconds = now.tv_sec;
    return now.tv_sec;
}

#ifdef __GLIBC__
/* The kernel knows nothing of the offset: without this, a server that is ahead by an hour waits an
 * hour too long. Times of the monotonic clock are smaller than those of the real one by decades. */
int pthread_cond_timedwait(pthread_cond_t *restrict condition, pthread_mutex_t *restrict mutex,
                           const struct timespec *restrict until) {
    struct timespec now, from, at;
    if (until->tv_nsec < 0 || until->tv_nsec >= 1000000000)
        return EINVAL;
    syscall(SYS_clock_gettime, CLOCK_MONOTONIC, &now);
    at = *until;
    if (until->tv_sec >= 1000000000) {
        clock_gettime(CLOCK_REALTIME, &from);
        at.tv_sec = now.tv_sec + until->tv_sec - from.tv_sec;
        at.tv_nsec = now.tv_nsec + until->tv_nsec - from.tv_nsec;
        for (; at.tv_nsec < 0; at.tv_nsec += 1000000000)
            at.tv_sec -= 1;
        for (; at.tv_nsec >= 1000000000; at.tv_nsec -= 1000000000)
            at.tv_sec += 1;
        if (at.tv_sec < 0)
            at = (struct timespec){0, 0};
    }
    return pthread_cond_clockwait(condition, mutex, CLOCK_MONOTONIC, &at);
}
#endif
