/* Runs a program and notes which of its functions are called at least once.
 *
 *   text-order FUNCTIONS CALLED PROGRAM ARG...
 *
 * FUNCTIONS has the addresses of the functions in the program's file, CALLED gets those that were called: one
 * hexadecimal number a line. Every function begins with a breakpoint that is removed at its first call, so the program
 * soon runs at its usual speed. For x86_64. */
#define _GNU_SOURCE
#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <unistd.h>

#define MOST (1 << 17)
#define BREAKPOINT 0xcc

static unsigned long functions[MOST], base;
static unsigned char first_byte[MOST], called[MOST];
static size_t count;
static pid_t program;

static void fail(const char *what) {
  perror(what);
  exit(1);
}

static int compare(const void *a, const void *b) {
  unsigned long x = *(const unsigned long *)a, y = *(const unsigned long *)b;
  return (x > y) - (x < y);
}

static void pass_on(int signal) { kill(program, signal); }

static int memory_of(pid_t task) {
  char path[64];
  snprintf(path, sizeof path, "/proc/%d/mem", task);
  return open(path, O_RDWR);
}

/* Where the first page of the program's file is mapped; 0 when the addresses in the file are final. */
static unsigned long find_base(const char *file) {
  char path[64], line[8192];
  Elf64_Ehdr header = {0};
  int program_file = open(file, O_RDONLY);
  if (program_file < 0 || read(program_file, &header, sizeof header) != sizeof header) fail(file);
  close(program_file);
  if (header.e_type == ET_EXEC) return 0;
  snprintf(path, sizeof path, "/proc/%d/maps", program);
  FILE *maps = fopen(path, "r");
  while (maps && fgets(line, sizeof line, maps))
    if (strstr(line, file)) {
      fclose(maps);
      return strtoul(line, NULL, 16);
    }
  errno = ENOENT;
  fail("the program's file is not mapped; name it by its real path");
  return 0;
}

static void set_breakpoints(void) {
  int memory = memory_of(program);
  unsigned char breakpoint = BREAKPOINT;
  for (size_t i = 0; i < count; i++)
    if (pread(memory, &first_byte[i], 1, base + functions[i]) != 1 || pwrite(memory, &breakpoint, 1, base + functions[i]) != 1)
      fail("cannot set a breakpoint");
  close(memory);
}

/* Takes a task over the breakpoint that it stands behind, if there is one. */
static void step_over(pid_t task, FILE *report) {
  struct user_regs_struct registers;
  if (ptrace(PTRACE_GETREGS, task, 0, &registers)) return;
  unsigned long address = registers.rip - 1 - base;
  unsigned long *found = bsearch(&address, functions, count, sizeof *functions, compare);
  if (!found) return;
  size_t i = found - functions;
  if (!called[i]) fprintf(report, "%lx\n", address), fflush(report);
  called[i] = 1;
  int memory = memory_of(task);
  if (pwrite(memory, &first_byte[i], 1, registers.rip - 1) != 1) fail("cannot remove a breakpoint");
  close(memory);
  registers.rip--;
  ptrace(PTRACE_SETREGS, task, 0, &registers);
}

int main(int words, char **word) {
  if (words < 4) {
    fprintf(stderr, "text-order FUNCTIONS CALLED PROGRAM ARG...\n");
    return 2;
  }
  FILE *list = fopen(word[1], "r"), *report = fopen(word[2], "ae");
  if (!list || !report) fail("cannot open a list of functions");
  while (count < MOST && fscanf(list, "%lx", &functions[count]) == 1) count++;
  qsort(functions, count, sizeof *functions, compare);
  program = fork();
  if (!program) {
    ptrace(PTRACE_TRACEME, 0, 0, 0);
    execv(word[3], word + 3);
    _exit(127);
  }
  int status;
  waitpid(program, &status, 0);
  if (!WIFSTOPPED(status)) fail(word[3]);
  base = find_base(word[3]);
  set_breakpoints();
  signal(SIGTERM, pass_on), signal(SIGINT, pass_on), signal(SIGHUP, pass_on);
  ptrace(PTRACE_SETOPTIONS, program, 0,
         PTRACE_O_TRACECLONE | PTRACE_O_TRACEFORK | PTRACE_O_TRACEVFORK | PTRACE_O_TRACEEXEC | PTRACE_O_EXITKILL);
  ptrace(PTRACE_CONT, program, 0, 0);
  for (;;) {
    pid_t task = waitpid(-1, &status, __WALL);
    if (task < 0 && errno == EINTR) continue;
    if (task < 0) fail("waitpid");
    if (WIFEXITED(status) || WIFSIGNALED(status)) {
      if (task == program) break;
      continue;
    }
    int signal = WSTOPSIG(status), event = status >> 16;
    if (event == PTRACE_EVENT_EXEC) {
      ptrace(PTRACE_DETACH, task, 0, 0);
      continue;
    }
    if (signal == SIGTRAP && !event) step_over(task, report);
    ptrace(PTRACE_CONT, task, 0, signal == SIGTRAP || signal == SIGSTOP ? 0 : signal);
  }
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}
