/*
 * init is PID 1 of a Machine. It runs one command, or several, reaps orphaned processes,
 * forwards signals, and ends exactly as the command ended: with its exit code, or by the
 * same signal. With -t it gives the command a terminal of its own, which lives in
 * the Machine and survives the daemon: standard input goes there, its output
 * comes out of standard output, and descriptor 3, if open, brings new sizes
 * (rows and columns, two little-endian 16-bit numbers). In this way it also runs
 * commands beside the main one; they die with it.
 *
 *   init [-t] UID GID GROUPS DIR COMMAND [ARG...]
 *
 * With -m it runs several commands, as the processes 2, 3 and so on. When any of them
 * ends, the others are sent SIGNAL and have GRACE milliseconds to follow; then init
 * ends as the first one did. Each COUNT says how many words the command has that
 * follows. A variable of the environment begins with the number of the command that it
 * is for, from 0, and a colon; with the colon alone it is for all.
 *
 *   init -m SIGNAL GRACE {UID GID GROUPS DIR COUNT COMMAND [ARG...]}...
 *
 * It also tells which sockets of other processes listen, because the files in
 * /proc/net do not name all of them in every kernel: see sockets().
 *
 *   init -s
 *
 * GROUPS is a comma-separated list or "-". A missing DIR is made. COMMAND is looked
 * up in the PATH of the environment. Exit codes of its own, as shells have them:
 * 126 the command cannot be executed, 127 there is none, 125 anything else.
 *
 * As PID 1 it also mounts what the driver has no way to: /dev/mqueue.
 *
 * It uses no library and makes a handful of system calls, because each one of its
 * pages and calls is paid for in the time that a Machine takes to boot.
 */

typedef unsigned long ulong;
typedef long word;

#if defined(__x86_64__)
enum {
	SYS_read = 0, SYS_write = 1, SYS_open = 2, SYS_poll = 7, SYS_rt_sigprocmask = 14, SYS_ioctl = 16,
	SYS_close = 3, SYS_dup2 = 33, SYS_getpid = 39, SYS_getsockname = 51, SYS_getpeername = 52, SYS_getsockopt = 55, SYS_fork = 57, SYS_execve = 59, SYS_exit = 60, SYS_wait4 = 61,
	SYS_kill = 62, SYS_chdir = 80, SYS_mkdir = 83, SYS_unlink = 87, SYS_fchown = 93, SYS_setuid = 105,
	SYS_setgid = 106, SYS_setsid = 112, SYS_prctl = 157, SYS_setgroups = 116, SYS_rt_sigtimedwait = 128, SYS_signalfd4 = 289,
	SYS_mount = 165, SYS_pidfd_open = 434, SYS_pidfd_getfd = 438, SYS_setitimer = 38, SYS_pipe2 = 293,
};

static word call5(word n, word a, word b, word c, word d, word e)
{
	word ret;
	register word r10 __asm__("r10") = d;
	register word r8 __asm__("r8") = e;
	__asm__ volatile("syscall" : "=a"(ret) : "a"(n), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8) : "rcx", "r11", "memory");
	return ret;
}

__asm__(".globl _start\n_start:\n\txor %ebp,%ebp\n\tmov %rsp,%rdi\n\tand $-16,%rsp\n\tcall run\n\thlt\n");

#define open_(path, flags) call(SYS_open, (word)(path), (flags), 0, 0)
#define fork_() call(SYS_fork, 0, 0, 0, 0)
#define dup2_(a, b) call(SYS_dup2, (a), (b), 0, 0)
#define mkdir_(path, mode) call(SYS_mkdir, (word)(path), (mode), 0, 0)
#define unlink_(path) call(SYS_unlink, (word)(path), 0, 0, 0)
#define poll_(fds, n, ms) call(SYS_poll, (word)(fds), (n), (ms), 0)
#elif defined(__aarch64__)
enum {
	SYS_dup3 = 24, SYS_ioctl = 29, SYS_mkdirat = 34, SYS_unlinkat = 35, SYS_mount = 40, SYS_chdir = 49, SYS_fchown = 55,
	SYS_openat = 56, SYS_close = 57, SYS_pipe2 = 59, SYS_setitimer = 103, SYS_read = 63, SYS_write = 64, SYS_ppoll = 73, SYS_signalfd4 = 74, SYS_exit = 93,
	SYS_kill = 129, SYS_rt_sigprocmask = 135, SYS_rt_sigtimedwait = 137, SYS_setgid = 144, SYS_setuid = 146,
	SYS_setsid = 157, SYS_setgroups = 159, SYS_prctl = 167, SYS_getpid = 172,
	SYS_getsockname = 204, SYS_getpeername = 205, SYS_getsockopt = 209, SYS_pidfd_open = 434, SYS_pidfd_getfd = 438, SYS_clone = 220, SYS_execve = 221, SYS_wait4 = 260,
};

static word call5(word n, word a, word b, word c, word d, word e)
{
	register word x8 __asm__("x8") = n;
	register word x0 __asm__("x0") = a;
	register word x1 __asm__("x1") = b;
	register word x2 __asm__("x2") = c;
	register word x3 __asm__("x3") = d;
	register word x4 __asm__("x4") = e;
	__asm__ volatile("svc 0" : "+r"(x0) : "r"(x8), "r"(x1), "r"(x2), "r"(x3), "r"(x4) : "memory");
	return x0;
}

__asm__(".globl _start\n_start:\n\tmov x29,#0\n\tmov x0,sp\n\tb run\n");

#define AT_FDCWD -100
#define open_(path, flags) call(SYS_openat, AT_FDCWD, (word)(path), (flags), 0)
#define fork_() call(SYS_clone, 17 /* SIGCHLD */, 0, 0, 0)
#define dup2_(a, b) call(SYS_dup3, (a), (b), 0, 0)
#define mkdir_(path, mode) call(SYS_mkdirat, AT_FDCWD, (word)(path), (mode), 0)
#define unlink_(path) call(SYS_unlinkat, AT_FDCWD, (word)(path), 0, 0)
static word poll_(void *fds, word n, word ms)
{
	word ts[2] = { ms / 1000, ms % 1000 * 1000000 };
	return call(SYS_ppoll, (word)fds, n, ms < 0 ? 0 : (word)ts, 0);
}
#else
#error "no system calls for this architecture"
#endif

#define call(n, a, b, c, d) call5(n, a, b, c, d, 0)

enum { ENOENT = 2, EINTR = 4, EACCES = 13, ENOTDIR = 20 };
enum { SIGINT = 2, SIGQUIT = 3, SIGKILL = 9, SIGALRM = 14, SIGTERM = 15, SIGCHLD = 17, SIGSTOP = 19, SIG_UNBLOCK = 1, SIG_SETMASK = 2, WNOHANG = 1 };
enum { O_RDWR = 2, O_NOCTTY = 0400, O_CLOEXEC = 02000000, TIOCSCTTY = 0x540E, TIOCSWINSZ = 0x5414 };
/* For how long, in milliseconds, the last output of a command waits for a reader. */
enum { LAST_WORDS = 1000 };
/* How many commands there may be, and for how long, in milliseconds, they may follow one
 * another if the driver has sent them the signal to stop, and sets its own limit. */
enum { MOST = 64, PATIENCE = 300000 };
enum { POLLIN = 1, POLLOUT = 4, POLLNVAL = 32, PR_SET_PDEATHSIG = 1, RESIZE = 3, CTRL_D = 4 };
enum { SOL_SOCKET = 1, SO_TYPE = 3, SO_ACCEPTCONN = 30 };
#define TIOCGPTN 0x80045430UL
#define TIOCSPTLCK 0x40045431UL

struct pollfd {
	int fd;
	short events, revents;
};

/* The driver keeps an empty /tmp from being replaced by a file system in memory
 * with this file; its work is done once we run. */
#define TMP_KEEPER "/tmp/.hangar-keep"

#define QUEUES "/dev/mqueue"

static ulong length(const char *s)
{
	ulong n = 0;
	while (s[n])
		n++;
	return n;
}

static void write_all(int fd, const char *p, ulong n)
{
	while (n > 0) {
		word w = call(SYS_write, fd, (word)p, n, 0);
		if (w == -EINTR)
			continue;
		if (w <= 0)
			return;
		p += w;
		n -= w;
	}
}

static void die(int code, const char *what, const char *detail)
{
	write_all(2, "hangar: ", 8);
	write_all(2, what, length(what));
	write_all(2, detail, length(detail));
	write_all(2, "\n", 1);
	for (;;)
		call(SYS_exit, code, 0, 0, 0);
}

static unsigned number(const char **s)
{
	unsigned n = 0;
	while (**s >= '0' && **s <= '9')
		n = n * 10 + (*(*s)++ - '0');
	return n;
}

static unsigned parse(const char *s)
{
	return number(&s);
}

/* enter makes dir the working directory, and first makes dir if there is none. */
static void enter(char *dir)
{
	word err = call(SYS_chdir, (word)dir, 0, 0, 0);
	if (err == -ENOENT) {
		for (char *p = dir + 1;; p++) {
			char c = *p;
			if (c != '/' && c != 0)
				continue;
			*p = 0;
			mkdir_(dir, 0755);
			*p = c;
			if (c == 0)
				break;
		}
		err = call(SYS_chdir, (word)dir, 0, 0, 0);
	}
	if (err < 0)
		die(125, "no working directory ", dir);
}

/* become takes on the identity of the command. */
static void become(unsigned uid, unsigned gid, const char *groups)
{
	static unsigned list[256];
	int n = 0;
	while (*groups >= '0' && *groups <= '9' && n < 256) {
		list[n++] = number(&groups);
		if (*groups == ',')
			groups++;
	}
	if (call(SYS_setgroups, n, (word)list, 0, 0) < 0 || call(SYS_setgid, gid, 0, 0, 0) < 0 ||
	    call(SYS_setuid, uid, 0, 0, 0) < 0)
		die(125, "cannot change user", "");
}

static const char *path_of(char **env)
{
	for (; *env; env++) {
		char *e = *env;
		if (e[0] == 'P' && e[1] == 'A' && e[2] == 'T' && e[3] == 'H' && e[4] == '=')
			return e + 5;
	}
	return "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
}

/* execute does not return. */
static void execute(char **argv, char **env)
{
	static char file[8192];
	word worst = -ENOENT, err;
	const char *path = path_of(env), *name = argv[0];
	ulong n = length(name);

	for (const char *p = name; *p; p++) {
		if (*p == '/') {
			worst = call(SYS_execve, (word)name, (word)argv, (word)env, 0);
			goto failed;
		}
	}
	while (n > 0) {
		ulong k = 0;
		while (path[k] && path[k] != ':')
			k++;
		if (k + n + 2 < sizeof file) {
			ulong at = 0;
			for (ulong i = 0; i < k; i++)
				file[at++] = path[i];
			if (k > 0)
				file[at++] = '/';
			for (ulong i = 0; i <= n; i++)
				file[at++] = name[i];
			err = call(SYS_execve, (word)file, (word)argv, (word)env, 0);
			if (err != -ENOENT && err != -ENOTDIR)
				worst = err;
		}
		if (!path[k])
			break;
		path += k + 1;
	}
failed:
	if (worst == -ENOENT || worst == -ENOTDIR)
		die(127, "command not found: ", name);
	die(126, "cannot execute ", name);
}

/* terminal opens a new pseudo terminal and returns its two ends. */
static int terminal(int *slave, unsigned uid, unsigned gid)
{
	char name[32] = "/dev/pts/";
	int unlock = 0, number = 0, at = 9, digits = 1;
	unsigned short size[4] = { 24, 80, 0, 0 };
	int master = open_("/dev/ptmx", O_RDWR | O_NOCTTY);

	if (master < 0 || call(SYS_ioctl, master, TIOCSPTLCK, (word)&unlock, 0) < 0 ||
	    call(SYS_ioctl, master, TIOCGPTN, (word)&number, 0) < 0)
		die(125, "no terminal", "");
	for (int n = number; n >= 10; n /= 10)
		digits++;
	for (int i = digits - 1; i >= 0; i--) {
		name[at + i] = '0' + number % 10;
		number /= 10;
	}
	*slave = open_(name, O_RDWR | O_NOCTTY);
	if (*slave < 0)
		die(125, "no terminal ", name);
	call(SYS_ioctl, *slave, TIOCSWINSZ, (word)size, 0);
	call(SYS_fchown, *slave, uid, gid, 0);
	return master;
}

/* copy moves the bytes that can be read; it returns 0 at the end of the input. The output
 * was found ready before: it takes a page without blocking. */
static int copy(int from, int to)
{
	static char buf[4096];
	word n = call(SYS_read, from, (word)buf, sizeof buf, 0);
	if (n > 0)
		write_all(to, buf, n);
	return n > 0 || n == -EINTR;
}

/* resize takes one new size from descriptor RESIZE; it returns 0 when none follows. */
static int resize(int master)
{
	unsigned short size[4] = { 0, 0, 0, 0 };
	if (call(SYS_read, RESIZE, (word)size, 4, 0) != 4)
		return 0;
	call(SYS_ioctl, master, TIOCSWINSZ, (word)size, 0);
	return 1;
}

/* end ends this process as a child with the given wait status ended. */
static void end(int status)
{
	int sig = status & 0x7f;
	if (sig != 0) {
		ulong none = 0;
		call(SYS_rt_sigprocmask, SIG_SETMASK, (word)&none, 0, 8);
		call(SYS_kill, call(SYS_getpid, 0, 0, 0, 0), sig, 0, 0);
		/* Where PID 1 is spared, say it as shells do. */
		call(SYS_exit, 128 + sig, 0, 0, 0);
	}
	for (;;)
		call(SYS_exit, (status >> 8) & 0xff, 0, 0, 0);
}

/* reap collects every child that has ended; if the command is among them it stores
 * its wait status and returns 1. */
static int reap(int command, int *status)
{
	int found = 0, ws;
	word pid;
	while ((pid = call(SYS_wait4, -1, (word)&ws, WNOHANG, 0)) > 0) {
		if (pid == command) {
			*status = ws;
			found = 1;
		}
	}
	return found;
}

/* signalled handles a signal; it returns only while the command runs. */
static int signalled(int sig, int command, int *status)
{
	if (sig == SIGCHLD)
		return reap(command, status);
	call(SYS_kill, command, sig, 0, 0);
	return 0;
}

/* A socket that sockets() is asked about and, with the rest filled in, answers. */
struct sock {
	unsigned pid, fd;
	int type;      /* SOCK_STREAM, SOCK_DGRAM */
	int waiting;   /* it accepts connections, or is not connected */
	char name[28]; /* struct sockaddr_in or sockaddr_in6 */
};

static word option(word fd, int name, int *value)
{
	static unsigned size;
	size = sizeof *value;
	return call5(SYS_getsockopt, fd, SOL_SOCKET, name, (word)value, (word)&size);
}

/* sockets reads process ids and descriptors, two 32-bit numbers each, from standard
 * input, and writes a struct sock for each of them that is a socket. */
static void sockets(void)
{
	static struct sock s;
	static char peer[128];
	unsigned last = 0, size;
	word process = -1, n, fd;

	for (;;) {
		for (ulong have = 0; have < 8; have += n) {
			n = call(SYS_read, 0, (word)&s + have, 8 - have, 0);
			if (n <= 0)
				return;
		}
		if (s.pid != last) {
			if (process >= 0)
				call(SYS_close, process, 0, 0, 0);
			process = call(SYS_pidfd_open, s.pid, 0, 0, 0);
			last = s.pid;
		}
		if (process < 0)
			continue;
		fd = call(SYS_pidfd_getfd, process, s.fd, 0, 0);
		if (fd < 0)
			continue;
		for (ulong i = 0; i < sizeof s.name; i++)
			s.name[i] = 0;
		size = sizeof s.name;
		if (option(fd, SO_TYPE, &s.type) == 0 && call(SYS_getsockname, fd, (word)s.name, (word)&size, 0) == 0) {
			size = sizeof peer;
			if (s.type == 1)
				option(fd, SO_ACCEPTCONN, &s.waiting);
			else
				s.waiting = call(SYS_getpeername, fd, (word)peer, (word)&size, 0) < 0;
			write_all(1, (char *)&s, sizeof s);
		}
		call(SYS_close, fd, 0, 0, 0);
	}
}

/* belonging returns those variables of env that are for the command of the given
 * number, in list. */
static char **belonging(char **env, unsigned command, char **list)
{
	int n = 0;
	for (; *env; env++) {
		const char *p = *env;
		if (*p == ':' || (number(&p) == command && *p == ':'))
			list[n++] = (char *)p + 1;
	}
	list[n] = 0;
	return list;
}

/* several runs the commands that argv describes, and ends as the first that ends. */
__attribute__((noinline)) static void several(char **argv, char **env)
{
	static int commands[MOST];
	int stop = parse(argv[0]), n = 0, left, ended = 0, told = 0, status = 0, gate[2], vars = 1, owned = 0;
	unsigned grace = parse(argv[1]);
	ulong all = ~0UL, none = 0;

	while (env[vars - 1])
		vars++;
	/* The commands wait at the gate until the last of them exists, so that their
	 * process ids follow from their order. */
	if (call(SYS_pipe2, (word)gate, O_CLOEXEC, 0, 0) < 0)
		die(125, "no pipe", "");
	for (argv += 2; argv[0]; n++) {
		for (int i = 0; i < 6; i++)
			if (!argv[i] || n == MOST)
				die(125, "these are no commands", "");
		int words = parse(argv[4]);
		unsigned uid = parse(argv[0]), gid = parse(argv[1]);
		if (uid != 0 && !owned) { /* the owner may open /dev/stdout again; of several, the first */
			owned = 1;
			call(SYS_fchown, 1, uid, gid, 0);
			call(SYS_fchown, 2, uid, gid, 0);
		}
		commands[n] = fork_();
		if (commands[n] < 0)
			die(125, "cannot fork", "");
		if (commands[n] == 0) {
			char *own[vars], c;
			call(SYS_close, gate[1], 0, 0, 0);
			call(SYS_read, gate[0], (word)&c, 1, 0);
			call(SYS_setsid, 0, 0, 0, 0);
			enter(argv[3]);
			become(uid, gid, argv[2]);
			argv[5 + words] = 0;
			call(SYS_rt_sigprocmask, SIG_SETMASK, (word)&none, 0, 8);
			execute(argv + 5, belonging(env, n, own));
		}
		for (argv += 5; words > 0 && *argv; words--)
			argv++;
	}
	call(SYS_close, gate[0], 0, 0, 0);
	call(SYS_close, gate[1], 0, 0, 0);

	for (left = n; left > 0;) {
		word sig = call(SYS_rt_sigtimedwait, (word)&all, 0, 0, 8), pid;
		int ws;
		if (sig == SIGALRM && ended)
			break; /* the rest ends with us */
		if (sig > 0 && sig != SIGCHLD) {
			/* A command that was asked to end by one signal is not asked by another. */
			told |= sig == stop || sig == SIGINT || sig == SIGQUIT || sig == SIGTERM;
			for (int i = 0; i < n; i++)
				if (commands[i])
					call(SYS_kill, commands[i], sig, 0, 0);
		}
		while (sig == SIGCHLD && (pid = call(SYS_wait4, -1, (word)&ws, WNOHANG, 0)) > 0) {
			for (int i = 0; i < n; i++) {
				if (commands[i] != pid)
					continue;
				commands[i] = 0;
				left--;
				if (left == n - 1)
					status = ws;
			}
		}
		if (left < n && !ended) {
			unsigned ms = told ? PATIENCE : grace;
			word timer[4] = { 0, 0, ms / 1000, ms % 1000 * 1000 + 1 };
			ended = 1;
			for (int i = 0; i < n; i++)
				if (commands[i] && !told)
					call(SYS_kill, commands[i], stop, 0, 0);
			call(SYS_setitimer, 0, (word)timer, 0, 0);
		}
	}
	end(status);
}

__attribute__((used)) void run(word *stack)
{
	int argc = *stack;
	char **argv = (char **)(stack + 1), **env = argv + argc + 1;
	int tty = 0, master = -1, slave = -1, status = 0, command;
	unsigned uid, gid;
	ulong all = ~0UL, none = 0;
	struct pollfd sizes = { RESIZE, POLLIN, 0 };

	argv++;
	argc--;
	if (argc > 0 && argv[0][0] == '-' && argv[0][1] == 't' && argv[0][2] == 0) {
		tty = 1;
		argv++;
		argc--;
	} else if (argc == 1 && argv[0][0] == '-' && argv[0][1] == 's' && argv[0][2] == 0) {
		sockets();
		for (;;)
			call(SYS_exit, 0, 0, 0, 0);
	}
	if (argc < 5)
		die(125, "usage: init [-t] UID GID GROUPS DIR COMMAND [ARG...]", "");

	call(SYS_rt_sigprocmask, SIG_SETMASK, (word)&all, 0, 8);
	if (call(SYS_getpid, 0, 0, 0, 0) == 1) {
		unlink_(TMP_KEEPER);
		mkdir_(QUEUES, 0755);
		call(SYS_mount, (word)"mqueue", (word)QUEUES, (word)"mqueue", 0);
	}
	if (argv[0][0] == '-' && argv[0][1] == 'm' && argv[0][2] == 0)
		several(argv + 1, env);
	uid = parse(argv[0]);
	gid = parse(argv[1]);
	if (tty) {
		/* Asked first: if it is not open, the next file will have its number. */
		poll_(&sizes, 1, 0);
		master = terminal(&slave, uid, gid);
		if (sizes.revents & POLLNVAL)
			sizes.fd = -1;
		else if (sizes.revents & POLLIN)
			resize(master);
	} else if (uid != 0) { /* so that the command may open /dev/stdout again */
		call(SYS_fchown, 1, uid, gid, 0);
		call(SYS_fchown, 2, uid, gid, 0);
	}

	command = fork_();
	if (command < 0)
		die(125, "cannot fork", "");
	if (command == 0) {
		call(SYS_setsid, 0, 0, 0, 0);
		if (tty) {
			call(SYS_ioctl, slave, TIOCSCTTY, 0, 0);
			dup2_(slave, 0);
			dup2_(slave, 1);
			dup2_(slave, 2);
		}
		enter(argv[3]);
		become(uid, gid, argv[2]);
		if (tty) /* after the change of user, which would clear it */
			call(SYS_prctl, PR_SET_PDEATHSIG, SIGKILL, 0, 0);
		call(SYS_rt_sigprocmask, SIG_SETMASK, (word)&none, 0, 8);
		execute(argv + 4, env);
	}

	if (!tty) {
		for (;;) {
			word sig = call(SYS_rt_sigtimedwait, (word)&all, 0, 0, 8);
			if (sig > 0 && signalled(sig, command, &status))
				end(status);
		}
	}

	/* The slave stays open here: without any, poll would keep reporting a hang-up.
	 * Nothing is read before it can be passed on, so that signals are handled even if
	 * the output has no reader. */
	int signals = call(SYS_signalfd4, -1, (word)&all, 8, 0);
	int out_ready = 0, in_ready = 0, in = 0;
	enum { SIGNALS, MASTER, OUT, STDIN, SIZES, SOURCES };
	struct pollfd fds[SOURCES] = { { signals, POLLIN, 0 }, { master, 0, 0 }, { 1, POLLOUT, 0 }, { 0, POLLIN, 0 }, sizes };
	static int info[32]; /* struct signalfd_siginfo: 128 bytes, the signal first */
	for (;;) {
		fds[MASTER].events = (out_ready ? POLLIN : 0) | (in_ready ? 0 : POLLOUT);
		fds[OUT].fd = out_ready ? -1 : 1;
		fds[STDIN].fd = in_ready ? in : -1;
		if (poll_(fds, SOURCES, -1) <= 0)
			continue;
		if (fds[OUT].revents)
			out_ready = 1;
		if (fds[MASTER].revents & POLLIN) {
			copy(master, 1);
			out_ready = 0;
		}
		if (fds[MASTER].revents & POLLOUT)
			in_ready = 1;
		if (fds[SIZES].revents && !((fds[SIZES].revents & POLLIN) && resize(master)))
			fds[SIZES].fd = -1;
		if (fds[STDIN].revents) {
			if (!((fds[STDIN].revents & POLLIN) && copy(0, master))) {
				char eof = CTRL_D;
				write_all(master, &eof, 1);
				in = -1;
			}
			in_ready = 0;
		}
		if (!(fds[SIGNALS].revents & POLLIN))
			continue;
		if (call(SYS_read, signals, (word)info, sizeof info, 0) != sizeof info)
			continue;
		if (signalled(info[0], command, &status)) {
			struct pollfd rest = { master, POLLIN, 0 }, out = { 1, POLLOUT, 0 };
			while (poll_(&rest, 1, 0) > 0 && (rest.revents & POLLIN) && poll_(&out, 1, LAST_WORDS) > 0 &&
			       copy(master, 1))
				;
			end(status);
		}
	}
}
