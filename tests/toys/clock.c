/* Preloaded: gettimeofday() is off by the seconds that the file named by $CLOCK_OFFSET holds, read at every call. */
#include <fcntl.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <unistd.h>

int gettimeofday(struct timeval *now, void *zone) {
    char text[32] = "0";
    int file = open(getenv("CLOCK_OFFSET"), O_RDONLY);
    if (file >= 0) {
        if (read(file, text, sizeof text - 1) < 0) text[0] = '0';
        close(file);
    }
    int failed = syscall(SYS_gettimeofday, now, zone);
    now->tv_sec += atol(text);
    return failed;
}
