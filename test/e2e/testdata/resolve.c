/* Prints the IPv6 addresses of a name, as the C library resolves it. */
#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <sys/socket.h>

int main(int argc, char **argv) {
	struct addrinfo hints = {.ai_family = AF_INET6, .ai_socktype = SOCK_STREAM}, *all, *one;
	int err = argc == 2 ? getaddrinfo(argv[1], NULL, &hints, &all) : EAI_FAIL;
	if (err) {
		fprintf(stderr, "%s\n", gai_strerror(err));
		return 1;
	}
	for (one = all; one; one = one->ai_next) {
		char text[INET6_ADDRSTRLEN];
		puts(inet_ntop(AF_INET6, &((struct sockaddr_in6 *)one->ai_addr)->sin6_addr, text, sizeof text));
	}
	return 0;
}
