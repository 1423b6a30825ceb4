/*
 * What the first process of a pod's sandbox does: it holds the pod's namespaces, and reaps orphans where it is pid 1
 * of a shared process namespace. Of the pause image, and of the program that the shim starts (runtime/sandbox/pause).
 */
#include <signal.h>
#include <sys/wait.h>

/* pause_block blocks the signals that pause_until_signalled waits for. It returns 0, or -1 with errno. */
static inline int pause_block(sigset_t *set) {
	sigemptyset(set);
	sigaddset(set, SIGINT);
	sigaddset(set, SIGTERM);
	sigaddset(set, SIGCHLD);
	/* Blocked signals are delivered to sigwaitinfo, even for pid 1, whose unhandled signals the kernel drops. */
	return sigprocmask(SIG_BLOCK, set, NULL);
}

/* pause_until_signalled returns at SIGINT or SIGTERM. */
static inline void pause_until_signalled(const sigset_t *set) {
	for (;;) {
		int sig = sigwaitinfo(set, NULL);
		if (sig == SIGINT || sig == SIGTERM)
			return;
		while (waitpid(-1, NULL, WNOHANG) > 0)
			;
	}
}
