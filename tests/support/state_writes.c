/* Stands between the agent and the C library (LD_PRELOAD): notes every step of writing a state file, and
 * ends the agent with SIGKILL at the step that a test has named.
 *
 * $NODELET_TEST_WRITES is a directory. A line `MOMENT CALL PATH` is added to `writes.log` in it at every step;
 * when the file `writes.kill` holds just that line, the file is removed and the agent dies. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <unistd.h>

static void step(const char *moment, const char *call, const char *path) {
  const char *dir = getenv("NODELET_TEST_WRITES");
  char line[8192], name[4096], armed[8192];
  if (!dir || !(strstr(path, "/root/nodelet") || strstr(path, "/run/pods/") || strstr(path, "/run/evictions")))
    return;
  int length = snprintf(line, sizeof line, "%s %s %s\n", moment, call, path);
  snprintf(name, sizeof name, "%s/writes.log", dir);
  int log = openat(AT_FDCWD, name, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
  if (log < 0 || write(log, line, length) != length)
    abort();
  close(log);
  snprintf(name, sizeof name, "%s/writes.kill", dir);
  int file = openat(AT_FDCWD, name, O_RDONLY | O_CLOEXEC);
  if (file < 0)
    return;
  ssize_t found = read(file, armed, sizeof armed);
  close(file);
  if (found == length && memcmp(armed, line, length) == 0 && unlinkat(AT_FDCWD, name, 0) == 0)
    kill(getpid(), SIGKILL);
}

int open64(const char *path, int flags, ...) {
  static int (*real)(const char *, int, ...);
  if (!real)
    real = (int (*)(const char *, int, ...))dlsym(RTLD_NEXT, "open64");
  mode_t mode = 0;
  if (flags & O_CREAT) {
    va_list arguments;
    va_start(arguments, flags);
    mode = va_arg(arguments, mode_t);
    va_end(arguments);
  }
  int opened = real(path, flags, mode);
  if (opened >= 0 && (flags & O_CREAT) && strstr(path, ".unfinished"))
    step("after", "open", path);
  return opened;
}

int rename(const char *from, const char *to) {
  static int (*real)(const char *, const char *);
  if (!real)
    real = (int (*)(const char *, const char *))dlsym(RTLD_NEXT, "rename");
  step("before", "rename", to);
  int result = real(from, to);
  step("after", "rename", to);
  return result;
}

int unlink(const char *path) {
  static int (*real)(const char *);
  if (!real)
    real = (int (*)(const char *))dlsym(RTLD_NEXT, "unlink");
  step("before", "unlink", path);
  int result = real(path);
  step("after", "unlink", path);
  return result;
}

/* The file or directory that a descriptor is open for. */
static void sync_step(const char *call, int file) {
  char link[64], path[4096];
  snprintf(link, sizeof link, "/proc/self/fd/%d", file);
  ssize_t length = readlink(link, path, sizeof path - 1);
  if (length < 0)
    return;
  path[length] = 0;
  step("after", call, path);
}

int fsync(int file) {
  static int (*real)(int);
  if (!real)
    real = (int (*)(int))dlsym(RTLD_NEXT, "fsync");
  int result = real(file);
  if (result == 0)
    sync_step("sync", file);
  return result;
}

int fdatasync(int file) {
  static int (*real)(int);
  if (!real)
    real = (int (*)(int))dlsym(RTLD_NEXT, "fdatasync");
  int result = real(file);
  if (result == 0)
    sync_step("sync", file);
  return result;
}
