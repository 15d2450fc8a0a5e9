"""Processes whose machine shows another time, and may jump; pauses last as long as they last.

libfaketime cannot keep the two apart: with it, a sleep by the monotonic clock fails.
"""

import os
import shutil
import struct
import subprocess
from pathlib import Path

SOURCE = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>

static const volatile long long *ahead;
static int (*real)(clockid_t, struct timespec *);

__attribute__((constructor)) static void begin(void) {
    real = (int (*)(clockid_t, struct timespec *)) dlsym(RTLD_NEXT, "clock_gettime");
    const char *path = getenv("WRONG_CLOCK_FILE");
    int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (file >= 0) ahead = mmap(0, sizeof *ahead, PROT_READ, MAP_SHARED, file, 0);
}
int clock_gettime(clockid_t clock, struct timespec *now) {
    int failed = real(clock, now);
    if (!failed && ahead && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) now->tv_sec += *ahead;
    return failed;
}
int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    struct timespec found;
    int failed = clock_gettime(CLOCK_REALTIME, &found);
    now->tv_sec = found.tv_sec;
    now->tv_usec = found.tv_nsec / 1000;
    return failed;
}
time_t time(time_t *place) {
    struct timespec found;
    clock_gettime(CLOCK_REALTIME, &found);
    if (place) *place = found.tv_sec;
    return found.tv_sec;
}
"""


class NoCompiler(Exception):
    """There is no C compiler on this machine: apt-get install gcc."""


class WrongClock:
    def __init__(self, folder: Path) -> None:
        compiler = shutil.which("cc") or shutil.which("gcc")
        if compiler is None:
            raise NoCompiler(NoCompiler.__doc__)
        self._file, source, self._library = folder / "ahead", folder / "clock.c", folder / "clock.so"
        source.write_text(SOURCE)
        command = [compiler, "-shared", "-fPIC", "-O1", "-o", str(self._library), str(source), "-ldl"]
        subprocess.run(command, check=True, capture_output=True)
        self._file.write_bytes(bytes(8))
        self.set_ahead(0)

    def set_ahead(self, seconds: int) -> None:
        """From the next look on, in every process that goes by it."""
        file = os.open(self._file, os.O_WRONLY)
        os.pwrite(file, struct.pack("q", seconds), 0)
        os.close(file)

    def env(self) -> dict[str, str]:
        return {"LD_PRELOAD": str(self._library), "WRONG_CLOCK_FILE": str(self._file)}
