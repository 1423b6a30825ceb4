/*
 * pause is the first process of a pod's sandbox: it holds the pod's namespaces. With a shared process
 * namespace it is pid 1 there and reaps orphans. It is C, not Go, because there is one in every pod: it
 * takes some 50 KB of memory instead of 1 MB.
 */
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

int main(int argc, char **argv) {
	if (argc > 1 && strcmp(argv[1], "-v") == 0) {
		puts("kubelith pause " VERSION);
		return 0;
	}
	sigset_t set;
	sigemptyset(&set);
	sigaddset(&set, SIGINT);
	sigaddset(&set, SIGTERM);
	sigaddset(&set, SIGCHLD);
	/* Blocked signals are delivered to sigwaitinfo, even for pid 1, whose unhandled signals the kernel drops. */
	if (sigprocmask(SIG_BLOCK, &set, NULL) != 0) {
		perror("pause: sigprocmask");
		return 1;
	}
	for (;;) {
		int sig = sigwaitinfo(&set, NULL);
		if (sig == SIGINT || sig == SIGTERM)
			return 0;
		while (waitpid(-1, NULL, WNOHANG) > 0)
			;
	}
}
