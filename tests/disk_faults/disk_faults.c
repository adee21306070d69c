/* Preloaded into a process: makes calls on files of one folder fail with an error of the operating system.
 *
 * disk_faults_set(folder, call, error, after, count): of the calls of this kind ("open", "read", "write", "sync",
 * "rename") on files whose path has `folder` in it, `after` succeed, then `count` fail with `error`; count 0: none.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

static char folder[4096], call[16];
static int error_number, left_before, left_failing, failed;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

void disk_faults_set(const char *of, const char *kind, int error, int after, int count) {
    pthread_mutex_lock(&lock);
    snprintf(folder, sizeof folder, "%s", of);
    snprintf(call, sizeof call, "%s", kind);
    error_number = error, left_before = after, left_failing = count, failed = 0;
    pthread_mutex_unlock(&lock);
}

int disk_faults_failed(void) { return failed; }

static int fails(const char *kind, const char *path) {
    int result = 0;
    if (!left_failing || !path) return 0;
    pthread_mutex_lock(&lock);
    if (left_failing && !strcmp(call, kind) && strstr(path, folder)) {
        if (left_before) left_before--;
        else left_failing--, failed++, result = 1;
    }
    pthread_mutex_unlock(&lock);
    if (result) errno = error_number;
    return result;
}

static int fails_fd(const char *kind, int fd) {
    char link[64], path[4096];
    if (!left_failing) return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (length < 0) return 0;
    path[length] = 0;
    return fails(kind, path);
}

#define REAL(name) static __typeof__(name) *real; if (!real) real = dlsym(RTLD_NEXT, #name)
#define MODE mode_t mode = 0; if (flags & (O_CREAT | O_TMPFILE)) { va_list rest; va_start(rest, flags); mode = va_arg(rest, mode_t); va_end(rest); }

int open(const char *path, int flags, ...) { REAL(open); MODE return fails("open", path) ? -1 : real(path, flags, mode); }
int open64(const char *path, int flags, ...) { REAL(open64); MODE return fails("open", path) ? -1 : real(path, flags, mode); }
int openat(int at, const char *path, int flags, ...) { REAL(openat); MODE return fails("open", path) ? -1 : real(at, path, flags, mode); }
DIR *opendir(const char *path) { REAL(opendir); return fails("open", path) ? NULL : real(path); }
ssize_t read(int fd, void *to, size_t size) { REAL(read); return fails_fd("read", fd) ? -1 : real(fd, to, size); }
ssize_t pread(int fd, void *to, size_t size, off_t at) { REAL(pread); return fails_fd("read", fd) ? -1 : real(fd, to, size, at); }
ssize_t pread64(int fd, void *to, size_t size, off64_t at) { REAL(pread64); return fails_fd("read", fd) ? -1 : real(fd, to, size, at); }
ssize_t write(int fd, const void *from, size_t size) { REAL(write); return fails_fd("write", fd) ? -1 : real(fd, from, size); }
ssize_t pwrite(int fd, const void *from, size_t size, off_t at) { REAL(pwrite); return fails_fd("write", fd) ? -1 : real(fd, from, size, at); }
ssize_t pwrite64(int fd, const void *from, size_t size, off64_t at) { REAL(pwrite64); return fails_fd("write", fd) ? -1 : real(fd, from, size, at); }
int fsync(int fd) { REAL(fsync); return fails_fd("sync", fd) ? -1 : real(fd); }
int fdatasync(int fd) { REAL(fdatasync); return fails_fd("sync", fd) ? -1 : real(fd); }
int rename(const char *from, const char *to) { REAL(rename); return fails("rename", to) ? -1 : real(from, to); }
