/*
 * pause is the first process of a pod's sandbox: it holds the pod's namespaces. With a shared process
 * namespace it is pid 1 there and reaps orphans. It is C, not Go, because there is one in every pod: it
 * takes some 50 KB of memory instead of 1 MB.
 */
#include <stdio.h>
#include <string.h>

#include "pause.h"

int main(int argc, char **argv) {
	if (argc > 1 && strcmp(argv[1], "-v") == 0) {
		puts("kubelith pause " VERSION);
		return 0;
	}
	sigset_t set;
	if (pause_block(&set) != 0) {
		perror("pause: sigprocmask");
		return 1;
	}
	pause_until_signalled(&set);
	return 0;
}
