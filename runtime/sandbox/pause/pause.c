/*
 * The first process of a pod's sandbox, started by runtime/sandbox in the pod's new namespaces, without runc.
 *
 * It runs with the rights of its starter until it has read what to become, and without any afterwards: an empty, read-only
 * root, no capability, the user of the sandbox, no_new_privs, and a seccomp filter that allows what is left to do. It
 * is of C because there is one in every pod, and because a Go program cannot give up its rights in all its threads.
 *
 * File descriptor 3 has the settings: strings that end with a NUL byte, a letter and a value each, until the end of
 * the file. File descriptor 4 takes an error as text; its end without text means that all is set up.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <linux/audit.h>
#include <linux/capability.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "../../images/programs/pause/pause.h"

#if defined(__x86_64__)
#define ARCH AUDIT_ARCH_X86_64
#elif defined(__aarch64__)
#define ARCH AUDIT_ARCH_AARCH64
#else
#error "pause: name this architecture for seccomp"
#endif

enum { SETTINGS = 3, RESULT = 4, MAX_GROUPS = 65536 };

static char settings[1 << 20];

/* fail reports what could not be done, and ends the process. */
static void fail(const char *what) {
	dprintf(RESULT, "%s: %s", what, strerror(errno));
	_exit(1);
}

/* load reads all settings. Without any, the starter is gone. */
static size_t load(void) {
	size_t have = 0;
	for (;;) {
		ssize_t n = read(SETTINGS, settings + have, sizeof settings - have);
		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			fail("read the settings");
		if (n == 0)
			break;
		have += n;
	}
	if (have == 0)
		_exit(1);
	if (have == sizeof settings || settings[have - 1] != 0) {
		errno = E2BIG;
		fail("read the settings");
	}
	close(SETTINGS);
	return have;
}

/* set_sysctl takes PATH=VALUE, a path below /proc/sys. What it sets is of this process's namespaces. */
static void set_sysctl(char *assignment) {
	char *value = strchr(assignment, '=');
	if (value == NULL) {
		errno = EINVAL;
		fail(assignment);
	}
	*value++ = 0;
	int fd = open(assignment, O_WRONLY | O_CLOEXEC);
	if (fd < 0 || write(fd, value, strlen(value)) < 0)
		fail(assignment);
	close(fd);
	value[-1] = '='; /* main looks for the end of the setting */
}

/* empty_root makes an empty, read-only directory the root. at is where it is mounted before, in a private namespace. */
static void empty_root(const char *at) {
	if (mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0)
		fail("make the mounts private");
	unsigned long flags = MS_NOSUID | MS_NODEV | MS_NOEXEC | MS_RDONLY;
	if (mount("pause", at, "tmpfs", flags, "size=4k,nr_inodes=1,mode=0555") != 0)
		fail("mount the root directory");
	/* The old root is stacked on the new one, and detached. */
	if (chdir(at) != 0 || syscall(SYS_pivot_root, ".", ".") != 0 || umount2(".", MNT_DETACH) != 0 || chdir("/") != 0)
		fail("change the root directory");
}

static void drop_capabilities(void) {
	if (prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0) != 0 && errno != EINVAL)
		fail("clear the ambient capabilities");
	struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3};
	struct __user_cap_data_struct none[2] = {{0}};
	if (syscall(SYS_capset, &header, none) != 0)
		fail("drop the capabilities");
}

/* allow_what_is_left installs a filter that is narrower than the runtime's default for containers. */
static void allow_what_is_left(void) {
#define ALLOW(name) BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, __NR_##name, 0, 1), BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)
	struct sock_filter filter[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, arch)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, ARCH, 1, 0),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		ALLOW(rt_sigtimedwait),
		ALLOW(wait4),
		ALLOW(rt_sigreturn),
		ALLOW(restart_syscall),
		ALLOW(close),
		ALLOW(exit),
		ALLOW(exit_group),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
	};
#undef ALLOW
	struct sock_fprog program = {.len = sizeof filter / sizeof filter[0], .filter = filter};
	/* EINVAL: a kernel without seccomp; containers have none there either. */
	if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0 && errno != EINVAL)
		fail("install the seccomp filter");
}

/* close_others closes what the server was started with: the files of the program that started it are not the pod's. */
static void close_others(void) {
	if (syscall(SYS_close_range, RESULT + 1, ~0U, 0) == 0)
		return;
	for (int fd = RESULT + 1; fd < 65536; fd++) /* before Linux 5.9 */
		close(fd);
}

int main(void) {
	close_others();
	sigset_t set;
	if (pause_block(&set) != 0)
		fail("block signals");
	size_t length = load();

	static gid_t groups[MAX_GROUPS];
	size_t ngroups = 0;
	uid_t uid = 65535;
	gid_t gid = 65535;
	const char *root = NULL;
	for (char *s = settings; s < settings + length; s += strlen(s) + 1) {
		char *value = s + 1;
		switch (*s) {
		case 'h':
			if (sethostname(value, strlen(value)) != 0)
				fail("set the host name");
			break;
		case 's':
			set_sysctl(value);
			break;
		case 'c':
			if (unshare(CLONE_NEWCGROUP) != 0)
				fail("make a cgroup namespace");
			break;
		case 'r':
			root = value;
			break;
		case 'u':
			uid = strtoul(value, NULL, 10);
			break;
		case 'g':
			gid = strtoul(value, NULL, 10);
			break;
		case 'G':
			if (ngroups < MAX_GROUPS)
				groups[ngroups++] = strtoul(value, NULL, 10);
			break;
		default:
			errno = EINVAL;
			fail(s);
		}
	}
	if (root == NULL) {
		errno = EINVAL;
		fail("no directory to mount the root on");
	}
	empty_root(root);

	/* The bounding set goes while there is CAP_SETPCAP, the rest once the user is set. */
	for (int cap = 0; prctl(PR_CAPBSET_DROP, cap, 0, 0, 0) == 0; cap++)
		;
	if (setgroups(ngroups, groups) != 0 || setresgid(gid, gid, gid) != 0 || setresuid(uid, uid, uid) != 0)
		fail("become the user of the sandbox");
	drop_capabilities();
	if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0)
		fail("set no_new_privs");
	prctl(PR_SET_NAME, "pause");
	allow_what_is_left();
	close(RESULT);

	pause_until_signalled(&set);
	return 0;
}
