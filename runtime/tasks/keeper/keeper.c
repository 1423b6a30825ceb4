/*
 * The keeper of a pod: the parent of its containers' processes while the server restarts. The server (runtime/tasks)
 * tells it what to start, and hears from it what has ended. It holds the pipes of standard input and output, copies
 * between them and containerd's FIFOs, and remembers exit codes until the server has taken them.
 *
 * It is of C because there is one for every pod: a shim in Go takes forty times the memory.
 *
 * File descriptor 3 is the socket on which it listens, of type SOCK_SEQPACKET. One server at a time is connected; a new
 * connection ends the one before. Every message is a struct message; that of RUN is followed by strings, and brings
 * files. It trusts its client, which is root like itself.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { LISTENER = 3, MAX_FILES = 4, MAX_MESSAGE = 128 << 10, CHUNK = 16 << 10, RECENT = 64, SOON_MS = 5, LATER_MS = 1000, UNKNOWN_STATUS = 255 };

/* What the server asks for. The numbers are those of keeper.go. */
enum {
	RUN = 1,    /* start a program: strings; files: those of its streams. Answer: STARTED */
	CONSOLE,    /* copy between a terminal and FIFOs: the terminal's master first. Answer: DONE */
	WATCH,      /* key is the process pid: remember its exit. Answer: DONE */
	FORGET,     /* forget what key is. Answer: DONE */
	RESIZE,     /* the terminal of key: number is rows << 16 | columns */
	CLOSE_STDIN,/* of key: the end of input comes when its other writers are gone */
	LIST,       /* Answers: STATE for each process, then DONE */
	QUIT,       /* end, unless there is a process. Answer: none */
};
/* What it says. */
enum {
	STARTED = 16, /* key; pid, or number is an error */
	DONE,         /* number is an error */
	EXITED,       /* pid, with its key if it is watched; number is the status as a shell reports it; time */
	DRAINED,      /* key: its output has been passed on */
	STATE,        /* key, pid, program; flags; number and time if it has exited */
};
/* Flags: of RUN and CONSOLE, which files are there, in this order; of STATE. */
enum { STDIN = 1, STDOUT = 2, STDERR = 4, HAS_EXITED = 8, HAS_OUTPUT = 16 };

struct message {
	uint32_t type, key, flags;
	int32_t pid, number;
	uint32_t uid, gid; /* owner of the pipes */
	int32_t program;
	int64_t seconds, nanoseconds;
};

struct process {
	uint32_t key;
	pid_t pid; /* 0: not known yet */
	pid_t program; /* what RUN has started for it; 0 when that has ended */
	uint64_t since; /* the number of exits before it was started */
	int exited, status;
	struct timespec at;
};

/* One direction of a process's input or output. from and to are -1 once they are closed. */
struct stream {
	uint32_t key;
	int from, to, hold; /* hold: a writer of an input FIFO, which keeps its end away */
	int output;
	int asked; /* how often its reader had not read to the end */
	char *left; /* what to did not take */
	size_t length, offset;
};

static struct process *processes;
static size_t process_count;
static struct stream *streams;
static size_t stream_count;
static struct message recent[RECENT]; /* exits, by their number */
static uint64_t exits;
static int client = -1, children;
static char chunk[CHUNK];

static void *grow(void *array, size_t count, size_t size) {
	void *p = reallocarray(array, count + 1, size);
	if (p == NULL)
		abort();
	return p;
}

static void close_if_open(int *fd) {
	if (*fd >= 0)
		close(*fd);
	*fd = -1;
}

/* say sends a message. A server that does not read is as good as gone: it asks again when it has connected again. */
static void say(struct message m) {
	if (client >= 0 && send(client, &m, sizeof m, MSG_NOSIGNAL | MSG_DONTWAIT) != sizeof m)
		close_if_open(&client);
}

static struct process *find(uint32_t key) {
	for (size_t i = 0; i < process_count; i++)
		if (processes[i].key == key)
			return &processes[i];
	return NULL;
}

static struct process *add_process(uint32_t key) {
	struct process *p = find(key);
	if (p == NULL) {
		processes = grow(processes, process_count, sizeof *processes);
		p = &processes[process_count++];
	}
	*p = (struct process){.key = key, .since = exits};
	return p;
}

static void add_stream(uint32_t key, int from, int to, int hold, int output) {
	streams = grow(streams, stream_count, sizeof *streams);
	streams[stream_count++] = (struct stream){.key = key, .from = from, .to = to, .hold = hold, .output = output};
	fcntl(from, F_SETFL, fcntl(from, F_GETFL) | O_NONBLOCK);
	fcntl(to, F_SETFL, fcntl(to, F_GETFL) | O_NONBLOCK);
}

static int has_output(uint32_t key) {
	for (size_t i = 0; i < stream_count; i++)
		if (streams[i].key == key && streams[i].output)
			return 1;
	return 0;
}

/* remove_stream reports the last output of a process. */
static void remove_stream(size_t i) {
	struct stream s = streams[i];
	close_if_open(&s.from);
	close_if_open(&s.to);
	close_if_open(&s.hold);
	free(s.left);
	streams[i] = streams[--stream_count];
	if (s.output && !has_output(s.key))
		say((struct message){.type = DRAINED, .key = s.key});
}

static void forget(uint32_t key) {
	for (size_t i = 0; i < stream_count;)
		if (streams[i].key == key)
			remove_stream(i);
		else
			i++;
	struct process *p = find(key);
	if (p != NULL)
		*p = processes[--process_count];
}

static struct message exit_of(pid_t pid, int status) {
	struct timespec now;
	clock_gettime(CLOCK_REALTIME, &now);
	return (struct message){.type = EXITED, .pid = pid, .number = status, .seconds = now.tv_sec, .nanoseconds = now.tv_nsec};
}

static void has_exited(struct process *p, struct message m) {
	p->exited = 1;
	p->status = m.number;
	p->at = (struct timespec){m.seconds, m.nanoseconds};
	m.key = p->key;
	say(m);
}

/*
 * watch is told which process it is. It may have ended since it was started, and so many others after it that its
 * status is not known any more: it is no child then.
 */
static void watch(uint32_t key, pid_t pid) {
	struct process *p = find(key);
	if (p == NULL)
		p = add_process(key);
	p->pid = pid;
	uint64_t first = exits > RECENT ? exits - RECENT : 0;
	for (uint64_t i = p->since > first ? p->since : first; i < exits; i++)
		if (recent[i % RECENT].pid == pid) {
			has_exited(p, recent[i % RECENT]);
			return;
		}
	siginfo_t info;
	if (waitid(P_PID, pid, &info, WEXITED | WNOHANG | WNOWAIT) != 0 && errno == ECHILD)
		has_exited(p, exit_of(pid, UNKNOWN_STATUS));
}

/* write_left returns whether all of what is left has gone. */
static int write_left(struct stream *s) {
	while (s->offset < s->length) {
		ssize_t n = write(s->to, s->left + s->offset, s->length - s->offset);
		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0 && errno == EAGAIN)
			return 0;
		if (n < 0)
			return -1; /* nobody reads it any more */
		s->offset += n;
	}
	free(s->left);
	s->left = NULL;
	s->length = s->offset = 0;
	return 1;
}

/* copy moves what there is, and returns whether the stream has ended. */
static int copy(struct stream *s) {
	for (int rounds = 0; rounds < 8; rounds++) { /* others have their turn */
		int gone = write_left(s);
		if (gone <= 0)
			return gone < 0;
		ssize_t n = read(s->from, chunk, sizeof chunk);
		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0 && errno == EAGAIN)
			return 0;
		if (n <= 0)
			return 1; /* EIO: the last process of a terminal has closed it */
		ssize_t written = write(s->to, chunk, n);
		if (written == n)
			continue;
		if (written < 0 && errno != EAGAIN && errno != EINTR)
			return 1;
		if (written < 0)
			written = 0;
		s->length = n - written;
		s->left = malloc(s->length);
		if (s->left == NULL)
			abort();
		memcpy(s->left, chunk + written, s->length);
	}
	return 0;
}

/* end removes a stream that has ended, once its reader has what is in the FIFO: it goes with its last file. */
static void end(size_t i) {
	struct stream *s = &streams[i];
	int waiting = 0;
	if (s->output && s->length == 0 && ioctl(s->to, FIONREAD, &waiting) == 0 && waiting > 0) {
		close_if_open(&s->from);
		s->asked++;
	} else {
		remove_stream(i);
	}
}

/* reap takes the exits of all children, those of containers' processes that lost their parent among them. */
static void reap(void) {
	struct signalfd_siginfo info;
	while (read(children, &info, sizeof info) == sizeof info)
		;
	int status;
	pid_t pid;
	while ((pid = waitpid(-1, &status, WNOHANG)) > 0) {
		if (!WIFEXITED(status) && !WIFSIGNALED(status))
			continue;
		struct message m = exit_of(pid, WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status));
		recent[exits++ % RECENT] = m;
		for (size_t i = 0; i < process_count; i++) { /* the server knows nothing of the others, which may be many */
			if (processes[i].program == pid) {
				processes[i].program = 0;
				say(m);
			}
			if (processes[i].pid == pid && !processes[i].exited)
				has_exited(&processes[i], m);
		}
	}
}

/* child becomes the program. It reports an error on the pipe that is closed when it has succeeded. */
static void child(char **argv, const int stdio[3], int report) {
	for (int i = 0; i < 3; i++)
		if (dup2(stdio[i], i) < 0)
			goto failed;
	if (dup3(report, LISTENER, O_CLOEXEC) < 0)
		goto failed;
	report = LISTENER;
	if (syscall(SYS_close_range, LISTENER + 1, ~0U, 0) != 0)
		for (int fd = LISTENER + 1; fd < 65536; fd++) /* before Linux 5.9 */
			close(fd);
	sigset_t none;
	sigemptyset(&none);
	sigprocmask(SIG_SETMASK, &none, NULL);
	signal(SIGPIPE, SIG_DFL);
	signal(SIGHUP, SIG_DFL);
	prctl(PR_SET_PDEATHSIG, SIGKILL); /* runc without its keeper has nobody to report to */
	execv(argv[0], argv);
failed:;
	int error = errno;
	if (write(report, &error, sizeof error) != sizeof error)
		_exit(126);
	_exit(127);
}

/* take returns a file that came with a message, and is not to be closed with it. */
static int take(int *file) {
	int fd = *file;
	*file = -1;
	return fd;
}

/* run starts a program and returns an error. strings end with a NUL byte each. It takes the files if it succeeds. */
static int run(struct message m, char *strings, size_t length, int *files, pid_t *pid) {
	char *argv[256];
	size_t argc = 0;
	for (char *s = strings; s < strings + length; s += strlen(s) + 1) {
		if (argc == sizeof argv / sizeof argv[0] - 1)
			return E2BIG;
		argv[argc++] = s;
	}
	argv[argc] = NULL;
	if (argc == 0)
		return EINVAL;

	/* The program's ends, and ours. */
	int stdio[3] = {-1, -1, -1}, ours[3] = {-1, -1, -1}, report[2] = {-1, -1}, error = 0;
	int null = open("/dev/null", O_RDWR | O_CLOEXEC);
	if (null < 0 || pipe2(report, O_CLOEXEC) != 0)
		error = errno;
	for (int i = 0; i < 3 && error == 0; i++) {
		int ends[2];
		if (!(m.flags & (1 << i)))
			stdio[i] = null;
		else if (pipe2(ends, O_CLOEXEC) != 0)
			error = errno;
		else {
			stdio[i] = ends[i == 0 ? 0 : 1];
			ours[i] = ends[i == 0 ? 1 : 0];
			if ((m.uid != 0 || m.gid != 0) && fchown(stdio[i], m.uid, m.gid) != 0)
				error = errno;
		}
	}
	if (error == 0) {
		*pid = fork();
		if (*pid == 0)
			child(argv, stdio, report[1]);
		if (*pid < 0)
			error = errno;
	}
	for (int i = 0; i < 3; i++)
		if (stdio[i] >= 0 && stdio[i] != null)
			close(stdio[i]);
	close_if_open(&null);
	close_if_open(&report[1]);
	if (error == 0) {
		int of_child;
		ssize_t n;
		while ((n = read(report[0], &of_child, sizeof of_child)) < 0 && errno == EINTR)
			;
		if (n == sizeof of_child)
			error = of_child; /* reaped with the others */
	}
	close_if_open(&report[0]);
	if (error != 0) {
		for (int i = 0; i < 3; i++)
			close_if_open(&ours[i]);
		return error;
	}
	add_process(m.key)->program = *pid;
	/* Of input there are two files: a reader, and a writer. */
	int next = 0;
	if (m.flags & STDIN) {
		add_stream(m.key, take(&files[0]), ours[0], take(&files[1]), 0);
		next = 2;
	}
	for (int i = 1; i < 3; i++)
		if (m.flags & (1 << i))
			add_stream(m.key, ours[i], take(&files[next++]), -1, 1);
	return 0;
}

/* console copies between a terminal and its FIFOs, and returns an error. It takes the files. */
static int console(struct message m, int *files) {
	int next = 1;
	if (m.flags & STDIN) {
		int master = fcntl(files[0], F_DUPFD_CLOEXEC, 0);
		if (master < 0)
			return errno;
		add_stream(m.key, take(&files[1]), master, take(&files[2]), 0);
		next = 3;
	}
	if (m.flags & STDOUT)
		add_stream(m.key, take(&files[0]), take(&files[next]), -1, 1);
	return 0;
}

/* resize needs the master, which is one side of a stream. */
static void resize(struct message m) {
	struct winsize size = {.ws_row = m.number >> 16 & 0xffff, .ws_col = m.number & 0xffff};
	for (size_t i = 0; i < stream_count; i++)
		if (streams[i].key == m.key)
			ioctl(streams[i].output ? streams[i].from : streams[i].to, TIOCSWINSZ, &size);
}

static void list(void) {
	for (size_t i = 0; i < process_count; i++) {
		struct process p = processes[i];
		say((struct message){
			.type = STATE, .key = p.key, .pid = p.pid, .program = p.program, .number = p.status,
			.flags = (p.exited ? HAS_EXITED : 0) | (has_output(p.key) ? HAS_OUTPUT : 0),
			.seconds = p.at.tv_sec, .nanoseconds = p.at.tv_nsec,
		});
	}
	say((struct message){.type = DONE});
}

/* how_many returns the number of files that come with a message. */
static int how_many(struct message m) {
	if (m.type != RUN && m.type != CONSOLE)
		return 0;
	return (m.type == CONSOLE) + (m.flags & STDIN ? 2 : 0) + !!(m.flags & STDOUT) + !!(m.flags & STDERR);
}

/* handle does what a message asks for, and may take its files. */
static void handle(struct message m, char *strings, size_t length, int *files) {
	struct message answer = {.type = DONE, .key = m.key};
	switch (m.type) {
	case RUN:
		answer.type = STARTED;
		answer.number = run(m, strings, length, files, &answer.pid);
		break;
	case CONSOLE:
		answer.number = console(m, files);
		break;
	case WATCH:
		watch(m.key, m.pid);
		break;
	case FORGET:
		forget(m.key);
		break;
	case RESIZE:
		resize(m);
		return;
	case CLOSE_STDIN:
		for (size_t i = 0; i < stream_count; i++)
			if (streams[i].key == m.key)
				close_if_open(&streams[i].hold);
		return;
	case LIST:
		list();
		return;
	case QUIT:
		if (process_count == 0)
			exit(0);
		return;
	default:
		answer.number = EINVAL;
	}
	say(answer);
}

/* receive takes one message. */
static void receive(void) {
	static char buffer[sizeof(struct message) + MAX_MESSAGE];
	union {
		struct cmsghdr header;
		char space[CMSG_SPACE(sizeof(int) * MAX_FILES)];
	} control;
	struct iovec io = {.iov_base = buffer, .iov_len = sizeof buffer - 1};
	struct msghdr header = {.msg_iov = &io, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};
	ssize_t n = recvmsg(client, &header, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
	if (n < 0 && (errno == EINTR || errno == EAGAIN))
		return;
	if (n <= 0) {
		close_if_open(&client);
		return;
	}
	int files[MAX_FILES], count = 0;
	for (struct cmsghdr *c = CMSG_FIRSTHDR(&header); c != NULL; c = CMSG_NXTHDR(&header, c))
		if (c->cmsg_level == SOL_SOCKET && c->cmsg_type == SCM_RIGHTS) {
			count = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
			memcpy(files, CMSG_DATA(c), count * sizeof(int));
		}
	struct message m;
	if (n >= (ssize_t)sizeof m) {
		memcpy(&m, buffer, sizeof m);
		buffer[n] = 0;
		int error = 0;
		if (header.msg_flags & MSG_CTRUNC) /* there is no room for more files, or a security module keeps them away */
			error = EMFILE;
		else if (header.msg_flags & MSG_TRUNC || how_many(m) != count)
			error = EBADMSG;
		if (error == 0)
			handle(m, buffer + sizeof m, n - sizeof m, files);
		else
			say((struct message){.type = m.type == RUN ? STARTED : DONE, .key = m.key, .number = error});
	}
	for (int i = 0; i < count; i++)
		close_if_open(&files[i]);
}

int main(void) {
	/* The server waits for the process that it has started, and is not to have another child. */
	pid_t pid = fork();
	if (pid != 0)
		_exit(pid < 0);
	setsid();
	if (chdir("/") != 0 || prctl(PR_SET_CHILD_SUBREAPER, 1) != 0)
		return 1;
	signal(SIGPIPE, SIG_IGN);
	signal(SIGHUP, SIG_IGN);
	sigset_t set;
	sigemptyset(&set);
	sigaddset(&set, SIGCHLD);
	if (sigprocmask(SIG_BLOCK, &set, NULL) != 0 || (children = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK)) < 0)
		return 1;
	fcntl(LISTENER, F_SETFD, FD_CLOEXEC);
	fcntl(LISTENER, F_SETFL, fcntl(LISTENER, F_GETFL) | O_NONBLOCK);

	struct pollfd *polled = NULL;
	for (;;) {
		/* Three, and up to two of each stream, in their order. */
		size_t count = 3 + 2 * stream_count;
		polled = grow(polled, count, sizeof *polled);
		polled[0] = (struct pollfd){.fd = LISTENER, .events = POLLIN};
		polled[1] = (struct pollfd){.fd = children, .events = POLLIN};
		polled[2] = (struct pollfd){.fd = client, .events = POLLIN};
		for (size_t i = 0; i < stream_count; i++) {
			int full = streams[i].length > 0;
			polled[3 + 2 * i] = (struct pollfd){.fd = full ? -1 : streams[i].from, .events = POLLIN};
			polled[4 + 2 * i] = (struct pollfd){.fd = full ? streams[i].to : -1, .events = POLLOUT};
		}
		int timeout = -1;
		for (size_t i = 0; i < stream_count; i++)
			if (streams[i].from < 0) {
				int wait = client < 0 ? LATER_MS : SOON_MS << (streams[i].asked < 5 ? streams[i].asked : 5);
				if (timeout < 0 || wait < timeout)
					timeout = wait;
			}
		if (poll(polled, count, timeout) < 0 && errno != EINTR)
			return 1;
		/* Backwards: a removed stream is replaced by the last one, which has had its turn. */
		for (size_t i = stream_count; i-- > 0;)
			if (streams[i].from < 0 || ((polled[3 + 2 * i].revents || polled[4 + 2 * i].revents) && copy(&streams[i])))
				end(i);
		if (polled[1].revents)
			reap();
		if (polled[2].revents && client >= 0)
			receive();
		if (polled[0].revents) {
			close_if_open(&client); /* before: there may be no room for another file */
			client = accept4(LISTENER, NULL, NULL, SOCK_CLOEXEC);
		}
	}
}
