/*
 * The CNI plugin of Kubelith's pod network. It does nothing itself: it hands the call over to the component "podlink" of the running
 * node (components/worker/podlink), and prints its answer. It is of C because containerd executes it for every pod, and a Go
 * program takes longer to start than the whole call.
 *
 * The call is CNI's own: parameters in the environment, a configuration on standard input, in which the key "socket" names the
 * component's socket. What goes over the socket: each parameter as NAME=VALUE and a NUL byte, one more NUL byte, the configuration.
 * What comes back: the exit status as a digit, then what to print.
 *
 * Source: CNI, SPEC.md, section 2.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

/* TRY_AGAIN is the code of an error that may be over later. Source: CNI, SPEC.md, section "Error". */
enum { TRY_AGAIN = 11, MAX_CONFIG = 1 << 20 };

static char config[MAX_CONFIG + 1];

/* fail prints an error as CNI has it, and ends the process. what needs no escapes in JSON. */
static void fail(const char *what) {
	printf("{\"cniVersion\":\"1.0.0\",\"code\":%d,\"msg\":\"%s: %s\"}\n", TRY_AGAIN, what, strerror(errno));
	exit(1);
}

static void send_all(int fd, const char *data, size_t length) {
	while (length > 0) {
		ssize_t n = send(fd, data, length, MSG_NOSIGNAL);
		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			fail("hand the call over to kubelith");
		data += n;
		length -= (size_t)n;
	}
}

/* read_config returns the length of the configuration, which ends with a NUL byte. */
static size_t read_config(void) {
	size_t have = 0;
	for (;;) {
		ssize_t n = read(STDIN_FILENO, config + have, MAX_CONFIG - have);
		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			fail("read the configuration");
		if (n == 0)
			return have;
		have += (size_t)n;
		if (have == MAX_CONFIG) {
			errno = E2BIG;
			fail("read the configuration");
		}
	}
}

/* find_socket copies the value of "socket" into path. components/worker/cni writes it without anything that JSON escapes, and CNI's
 * library passes it on without blanks. */
static void find_socket(char *path, size_t size) {
	static const char key[] = "\"socket\":\"";
	const char *value = strstr(config, key), *end = value ? strchr(value + sizeof key - 1, '"') : NULL;
	if (end == NULL) {
		errno = ENOENT;
		fail("the configuration names no socket");
	}
	value += sizeof key - 1;
	if ((size_t)(end - value) >= size) {
		errno = ENAMETOOLONG;
		fail("the socket in the configuration");
	}
	memcpy(path, value, (size_t)(end - value));
	path[end - value] = 0;
}

int main(void) {
	static const char *const names[] = {"CNI_COMMAND", "CNI_CONTAINERID", "CNI_NETNS", "CNI_IFNAME", "CNI_ARGS", "CNI_PATH"};
	struct sockaddr_un to = {.sun_family = AF_UNIX};
	size_t length = read_config();
	const char *command = getenv("CNI_COMMAND");
	if (command != NULL && strcmp(command, "VERSION") == 0) { /* the one command without a configuration */
		puts("{\"cniVersion\":\"1.0.0\",\"supportedVersions\":[\"1.0.0\"]}");
		return 0;
	}
	find_socket(to.sun_path, sizeof to.sun_path);
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (fd < 0 || connect(fd, (struct sockaddr *)&to, sizeof to) != 0)
		fail("kubelith does not answer, is it running");
	for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
		const char *value = getenv(names[i]);
		if (value == NULL)
			continue;
		send_all(fd, names[i], strlen(names[i]));
		send_all(fd, "=", 1);
		send_all(fd, value, strlen(value) + 1);
	}
	send_all(fd, "", 1);
	send_all(fd, config, length);
	if (shutdown(fd, SHUT_WR) != 0)
		fail("hand the call over to kubelith");

	char answer[4096];
	int status = -1;
	for (;;) {
		ssize_t n = read(fd, answer, sizeof answer);
		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			fail("read the answer of kubelith");
		if (n == 0)
			break;
		char *text = answer;
		if (status < 0) {
			status = *text++ != '0';
			n--;
		}
		fwrite(text, 1, (size_t)n, stdout);
	}
	if (status < 0) {
		errno = ECONNRESET;
		fail("kubelith gave no answer");
	}
	return fflush(stdout) == 0 ? status : 1;
}
