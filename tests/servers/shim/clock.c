/* A preloaded library (LD_PRELOAD) that shifts a program's real-time clock while the program runs.
 * It adds an offset to the system's time: the microseconds in the file CLOCK_SHIM, a 64-bit number
 * in the machine's byte order. CLOCK_MONOTONIC and the other clocks are not affected. Waits for a
 * condition end by the shifted clock too, as it is when they begin.
 *
 * It asks the kernel directly. redis-server's allocator reads a clock before the dynamic linker can
 * find the functions that this library replaces, which is where libfaketime hangs. Nothing here
 * allocates. */
#define _GNU_SOURCE
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

static void shift(struct timespec *time, int64_t micros) {
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

int clock_gettime(clockid_t clock, struct timespec *time) {
    int result = (int)syscall(SYS_clock_gettime, clock, time);
    if (result == 0 && offset_micros && is_real_time(clock))
        shift(time, *offset_micros);
    return result;
}

#ifdef __GLIBC__
/* This bit says that the condition was made for the monotonic clock. */
#define MONOTONIC 2

int pthread_cond_timedwait(pthread_cond_t *restrict cond, pthread_mutex_t *restrict mutex,
                           const struct timespec *restrict end) {
    if (cond->__data.__wrefs & MONOTONIC)
        return pthread_cond_clockwait(cond, mutex, CLOCK_MONOTONIC, end);
    struct timespec real = *end;
    if (offset_micros)
        shift(&real, -*offset_micros);
    return pthread_cond_clockwait(cond, mutex, CLOCK_REALTIME, &real);
}
#endif

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
